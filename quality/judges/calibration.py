"""Calibration of a judge: its verdicts compared with known outcomes, with an interval."""

from collections.abc import Iterable
from math import sqrt
from typing import Any, Literal

import msgspec

from quality.estimates.upgrade_rate import wilson_interval
from quality.judges.judge import Judge, JudgeVerdict


class GradedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two answers to a prompt with a comparison known independently of the judge."""

    prompt: str
    answer: str
    reference_answer: str
    no_worse: bool
    response_format: dict[str, Any] | None = None


class Bias(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts that follow something else than the answers: in `first` and `second`, a preference for that place in
    either order, which makes a tie; in `longer` and `shorter`, a preference for a wrong answer of that length.

    Without a bias of length the last two are as frequent as each other: of the planted wrong answers, half are longer.
    """

    first: int = 0
    second: int = 0
    longer: int = 0
    shorter: int = 0

    @property
    def in_words(self) -> str:
        """The counts, for people."""
        return (
            f"in {self.first} pairs it preferred the first place whatever stood there, in {self.second} the second; it "
            f"wrongly preferred a longer answer in {self.longer}, a shorter one in {self.shorter}"
        )

    def with_verdict(self, pair: GradedPair, verdict: JudgeVerdict) -> "Bias":
        """Return the counts after `verdict` on `pair`."""
        prefers_answer, prefers_reference = verdict.score == 1.0, verdict.score == 0.0
        wrong = prefers_reference if pair.no_worse else prefers_answer
        answer_is_longer = len(pair.answer) > len(pair.reference_answer)
        longer = prefers_answer is answer_is_longer
        return Bias(
            first=self.first + (verdict.place == "first"),
            second=self.second + (verdict.place == "second"),
            longer=self.longer + (wrong and longer),
            shorter=self.shorter + (wrong and not longer),
        )


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a judge's verdicts on pairs with known outcomes. Abstentions are counted apart: they do no harm.

    `pairs`: whether the pairs were generated, are answers of a catalogue's tiers, or have planted errors. `decided`:
    what a sequential test ended with, which is valid at its own end; None where all pairs were counted. `bias`: of a
    judge that was tested on planted pairs.
    """

    judge: str
    true_no_worse: int
    false_worse: int
    true_worse: int
    false_no_worse: int
    abstained: int
    pairs: Literal["generated", "answered", "planted"] = "generated"
    decided: bool | None = None
    bias: Bias | None = None

    @property
    def sensitivity(self) -> float:
        """The share of truly no-worse answers, among those judged, that the judge calls no worse."""
        judged = self.true_no_worse + self.false_worse
        return self.true_no_worse / judged if judged else 0.0

    @property
    def specificity(self) -> float:
        """The share of truly worse answers, among those judged, that the judge calls worse."""
        judged = self.true_worse + self.false_no_worse
        return self.true_worse / judged if judged else 0.0

    @property
    def balanced_accuracy(self) -> float:
        """Mean of sensitivity and specificity: 0.5 for a judge that always says the same."""
        return (self.sensitivity + self.specificity) / 2

    @property
    def judged(self) -> int:
        """The pairs on which it did not abstain."""
        return self.true_no_worse + self.false_worse + self.true_worse + self.false_no_worse

    @property
    def weight(self) -> float:
        """What a label weighs: informedness (Youden's J)."""
        return 2 * self.balanced_accuracy - 1

    @property
    def lower_bound(self) -> float:
        """Lower end of the balanced accuracy's 95% interval (square-and-add of Wilson intervals, Newcombe 1998)."""
        yes = wilson_interval(self.true_no_worse, self.true_no_worse + self.false_worse)
        no = wilson_interval(self.true_worse, self.true_worse + self.false_no_worse)
        return self.balanced_accuracy - sqrt((self.sensitivity - yes.low) ** 2 + (self.specificity - no.low) ** 2) / 2

    @property
    def trusted(self) -> bool:
        """Whether the judge is significantly better than chance; only then its verdicts become labels
        (docs/quality-loop.md)."""
        return self.lower_bound > 0.5 if self.decided is None else self.decided


async def calibrate(
    judge: Judge, pairs: Iterable[GradedPair], source: Literal["generated", "answered"] = "generated"
) -> Calibration:
    """Count the verdicts of `judge` on all pairs."""
    counts = {(True, True): 0, (True, False): 0, (False, False): 0, (False, True): 0}
    abstained = 0
    for pair in pairs:
        verdict = await judge.judge(
            prompt=pair.prompt,
            answer=pair.answer,
            reference_answer=pair.reference_answer,
            response_format=pair.response_format,
        )
        if verdict.no_worse is None:
            abstained += 1
        else:
            counts[pair.no_worse, verdict.no_worse] += 1
    return Calibration(
        judge=judge.name,
        true_no_worse=counts[True, True],
        false_worse=counts[True, False],
        true_worse=counts[False, False],
        false_no_worse=counts[False, True],
        abstained=abstained,
        pairs=source,
    )
