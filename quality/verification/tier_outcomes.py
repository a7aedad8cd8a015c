"""Whose outcomes a stored row has: a tier's fingerprint (`Catalog.tier_fingerprint`) owns them, wherever it stands.

A change of one tier's model, policy or quantisation thereby leaves the outcomes of the others. "No worse" compares with
the strongest tier's answer, so that a change of the strongest ends what is known of all.
"""

from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value", bool, float)


def outcomes_of_tiers(
    outcomes: Sequence[Value | None], owners: Sequence[str] | None, tiers: Sequence[str]
) -> list[Value | None] | None:
    """`outcomes` of the tiers with the fingerprints `owners` as those of today's `tiers`, None for a tier without one.

    None as a whole where the row says nothing of today's: its strongest tier was another, or its owners were not stored
    and it has another number of tiers. With as many, such a row is taken to be of today's tiers.
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
