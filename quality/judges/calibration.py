"""Calibration of a judge: its verdicts compared with known outcomes, with an interval."""

from collections.abc import Iterable
from math import comb, sqrt
from typing import Any, Literal

import msgspec

from quality.estimates.upgrade_rate import wilson_interval
from quality.judges.judge import Judge, JudgeVerdict

# The balanced accuracy above which a judge's lower bound must lie: that of chance, and by real pairs a little more,
# since a judge that always says the same would otherwise only approach the limit.
CHANCE, LIMIT_IN_USE = 0.5, 0.55
# Of so many real pairs the truth must be known before they end a trust that a test gave.
LEAST_KNOWN = 10


class GradedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two answers to a prompt with a comparison known independently of the judge. `equal`: neither is better."""

    prompt: str
    answer: str
    reference_answer: str
    no_worse: bool
    equal: bool = False
    response_format: dict[str, Any] | None = None


class Bias(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts that follow something else than the answers: in `first` and `second`, a preference for that place in
    either order, which makes a tie; in `longer` and `shorter`, a wrong preference for the answer of that length.

    Without a bias of length the last two are as frequent as each other: of the planted answers that are wrong, or right
    and filled up, half are longer.
    """

    first: int = 0
    second: int = 0
    longer: int = 0
    shorter: int = 0

    @property
    def prefers_a_length(self) -> bool:
        """Whether its wrong preferences follow length: a sign test at 5%."""
        wrong = self.longer + self.shorter
        tail = sum(comb(wrong, count) for count in range(min(self.longer, self.shorter) + 1))
        return 2 * tail < 0.05 * (1 << wrong)

    def with_wrong(self, *, longer: bool) -> "Bias":
        """Return the counts after another wrong preference, for the longer answer or for the shorter."""
        return msgspec.structs.replace(self, longer=self.longer + longer, shorter=self.shorter + (not longer))

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
        wrong = wrong or (pair.equal and prefers_answer)
        answer_is_longer = len(pair.answer) > len(pair.reference_answer)
        longer = prefers_answer is answer_is_longer
        return Bias(
            first=self.first + (verdict.place == "first"),
            second=self.second + (verdict.place == "second"),
            longer=self.longer + (wrong and longer),
            shorter=self.shorter + (wrong and not longer),
        )


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a judge's verdicts by truth and verdict."""

    true_no_worse: int = 0
    false_worse: int = 0
    true_worse: int = 0
    false_no_worse: int = 0

    @property
    def in_order(self) -> tuple[int, int, int, int]:
        """The counts in the order of the fields."""
        return self.true_no_worse, self.false_worse, self.true_worse, self.false_no_worse

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.in_order)

    def with_one(self, no_worse: bool, said: bool) -> "Verdicts":
        """Return the counts after another verdict: whether the answer is no worse, and whether the judge said so."""
        name = {
            (True, True): "true_no_worse",
            (True, False): "false_worse",
            (False, False): "true_worse",
            (False, True): "false_no_worse",
        }[no_worse, said]
        return msgspec.structs.replace(self, **{name: getattr(self, name) + 1})


class RealPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts in use: on pairs that a rule decided as well, on those that an operator has read, and by what the judge
    `said` of the others, whose truth is not known. `bias`: of the wrong ones."""

    checked: Verdicts = Verdicts()
    reviewed: Verdicts = Verdicts()
    said_no_worse: int = 0
    said_worse: int = 0
    bias: Bias = Bias()

    @property
    def known(self) -> int:
        """Of so many the truth is known."""
        return self.checked.total + self.reviewed.total


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """A judge's error rates by real `pairs`; [`low`, `high`] is the balanced accuracy's 95% credible interval."""

    pairs: RealPairs
    sensitivity: float
    specificity: float
    low: float
    high: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a judge's verdicts on pairs with known outcomes. Abstentions are counted apart: they do no harm.

    `pairs`: whether the pairs were generated, are answers of a catalogue's tiers, or have planted errors. `decided`:
    what a sequential test ended with, which is valid at its own end; None where all pairs were counted. `bias`: of a
    judge that was tested on planted pairs. `in_use`: what real pairs say on top, which then decides the weight and may
    end the trust; None for judges whose pairs are all the evidence.
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
    in_use: InUse | None = None

    @property
    def sensitivity(self) -> float:
        """The share of truly no-worse answers, among those judged, that the judge calls no worse."""
        if self.in_use is not None:
            return self.in_use.sensitivity
        return _share(self.true_no_worse, self.false_worse)

    @property
    def specificity(self) -> float:
        """The share of truly worse answers, among those judged, that the judge calls worse."""
        if self.in_use is not None:
            return self.in_use.specificity
        return _share(self.true_worse, self.false_no_worse)

    @property
    def balanced_accuracy(self) -> float:
        """Mean of sensitivity and specificity: 0.5 for a judge that always says the same."""
        return (self.sensitivity + self.specificity) / 2

    @property
    def prefers_a_length(self) -> bool:
        """Whether its test shows that, or its test and real pairs together."""
        tested = self.bias or Bias()
        real = Bias() if self.in_use is None else self.in_use.pairs.bias
        both = Bias(longer=tested.longer + real.longer, shorter=tested.shorter + real.shorter)
        return tested.prefers_a_length or both.prefers_a_length

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
        """Lower end of the balanced accuracy's 95% interval, by real pairs where they count."""
        return self.tested_bound if self.in_use is None else self.in_use.low

    @property
    def tested_bound(self) -> float:
        """The same by its test alone (square-and-add of Wilson intervals, Newcombe 1998)."""
        right, wrong = self.true_no_worse, self.true_worse
        yes = wilson_interval(right, right + self.false_worse)
        no = wilson_interval(wrong, wrong + self.false_no_worse)
        first, second = _share(right, self.false_worse), _share(wrong, self.false_no_worse)
        return (first + second) / 2 - sqrt((first - yes.low) ** 2 + (second - no.low) ** 2) / 2

    @property
    def trusted(self) -> bool:
        """Whether the judge is significantly better than chance; only then its verdicts become labels
        (docs/quality-loop.md)."""
        if self.in_use is not None and self.in_use.pairs.known >= LEAST_KNOWN and self.in_use.low <= LIMIT_IN_USE:
            return False
        return self.tested_bound > CHANCE if self.decided is None else self.decided


def _share(right: int, wrong: int) -> float:
    return right / (right + wrong) if right + wrong else 0.0


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
