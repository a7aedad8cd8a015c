"""Cheap answers that a verification compares: whether they agree, and whether an agreed one is worse than the
reference."""

from collections.abc import Mapping, Sequence

import msgspec

from quality.estimates.upgrade_rate import UNCERTAIN
from quality.records.record import ComparedAs
from tiers.final_answer.agreement import agree
from tiers.final_answer.extract import FinalAnswer


class VerifiedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`, ascending, whose answers are compared; one tier twice: two samples of it. The last one's answer would be
    sent if another equals it. `models`: of these tiers.

    `agreed`: whether another answer equals the last one's; `lost`: whether that is worse than the strongest tier's.
    None: not known. `informed`: Youden's J of the judge who said so, 1 where none did.
    """

    tiers: tuple[int, ...]
    compared_as: ComparedAs
    models: tuple[str, ...] = ()
    agreed: bool | None = None
    lost: bool | None = None
    informed: float = 1.0

    @property
    def sampled_again(self) -> frozenset[int]:
        """The tiers of which two samples are compared."""
        return frozenset(number for number in self.tiers if self.tiers.count(number) > 1)


def agreeing(tiers: Sequence[int], ends: Sequence[FinalAnswer | None]) -> list[int]:
    """Return the last of `tiers` and those that said the same, by their final answers `ends`; none if none did."""
    found = [number for number, end in zip(tiers[:-1], ends[:-1], strict=True) if agree(end, ends[-1])]
    return [tiers[-1], *found] if found else []


def is_lost(
    agreed: Sequence[int],
    verdicts: Mapping[int, tuple[str | None, float | None]],
    end: FinalAnswer | None,
    reference: FinalAnswer | None,
) -> tuple[bool | None, float]:
    """Return whether what the tiers `agreed` on is worse than the reference, and how informed that is: by the labels of
    their answers and the judge's reliability, its balanced accuracy, in `verdicts`. None where opinions on it differ.
    Where no judge decides, an answer that does not equal the `reference` counts as worse."""
    told = [verdicts[number] for number in agreed if number in verdicts]
    decided = [(label, reliability) for label, reliability in told if label in ("worse", "no_worse", "tie")]
    if not decided:
        return (None if any(label == UNCERTAIN for label, _ in told) else not agree(end, reference)), 1.0
    # Of several labels one "worse" is enough, so it is that one's error which counts.
    label, reliability = min(decided, key=lambda one: (one[0] != "worse", -(one[1] or 1.0)))
    return label == "worse", informedness(reliability)


def informedness(reliability: float | None) -> float:
    """Return Youden's J of a judge of this balanced accuracy; 1 where no judge said anything (None)."""
    return 1.0 if reliability is None else 2.0 * reliability - 1.0
