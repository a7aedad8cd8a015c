"""Outcomes belong to tier fingerprints (`Catalog.tier_fingerprint`), not to positions in the ladder.

A change of one tier's model, policy or quantisation thus keeps the outcomes of the others. "No worse" compares with the
strongest tier's answer, so a change of the strongest tier invalidates all.
"""

from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value", bool, float)


def outcomes_of_tiers(
    outcomes: Sequence[Value | None], owners: Sequence[str] | None, tiers: Sequence[str]
) -> list[Value | None] | None:
    """Map `outcomes` of the tiers with the fingerprints `owners` to the current `tiers`, None for a tier without one.

    Returns None if the row has no current outcome: its strongest tier was another, or its owners were not stored and it
    has another number of tiers. With the same number such a row is assumed to belong to the current tiers.
    """
    if not owners:
        return list(outcomes) if len(outcomes) == len(tiers) else None
    if len(owners) != len(outcomes) or owners[-1] != tiers[-1]:
        return None
    known = dict(zip(owners, outcomes, strict=True))
    found: list[Value | None] = [known.get(tier) for tier in tiers[:-1]]
    if all(outcome is None for outcome in found):
        return None
    found.append(outcomes[-1])
    return found
