"""Calibration of a judge: its verdicts compared with known outcomes, with an interval; and its error rates from real
pairs, which are verdicts on answers of which a check or an operator says the truth as well.

Planted errors are easier than real ones, so a test on planted pairs is only a weak prior (`PRIOR` pseudo-verdicts per
truth). Three kinds of verdicts count on top: those on pairs that a rule decided; those that an operator has read, who
picks them by what the judge said; and the others, of which only the share of "worse" is known. What an operator reads
depends on the verdict alone, so the reviews tell the truth given the verdict (Begg and Greenes 1983, "Assessment of
diagnostic tests when disease verification is subject to selection bias"), and the judge's shares of verdicts give the
rest: a latent class of two values with one rater (Dawid and Skene 1979) whose truth is partly known. The posterior of
sensitivity, specificity and the share of answers that are no worse is computed on a grid.

Feedback of callers counts for their own keys alone, so it moves no judge's weight."""

from collections.abc import Iterable
from math import comb, sqrt
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from quality.estimates.verified_sample import PEOPLE, has_verdict, wilson_interval
from quality.judges.judge import Judge, JudgeVerdict

# The balanced accuracy above which a judge's lower bound must lie: that of chance, and by real pairs a little more,
# since a judge that always says the same would otherwise only approach the limit.
CHANCE, LIMIT_IN_USE = 0.5, 0.55
# Of so many real pairs the truth must be known before they end a trust that a test gave.
LEAST_KNOWN = 10


class GradedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two answers to a prompt with a comparison known independently of the judge."""

    prompt: str
    answer: str
    reference_answer: str
    no_worse: bool
    equal: bool = False
    """Whether neither is better."""
    response_format: dict[str, Any] | None = None


class Bias(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts that follow something else than the answers: in `first` and `second`, a preference for that place in
    either order, which makes an abstention; in `longer` and `shorter`, a preference for the answer of that length that
    was wrong, or held in a control too.

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
        prefers_answer = verdict.score == 1.0 or verdict.moved_to == "answer"
        prefers_reference = verdict.score == 0.0 or verdict.moved_to == "reference"
        wrong = prefers_reference if pair.no_worse else prefers_answer
        wrong = wrong or (pair.equal and prefers_answer) or verdict.moved_to is not None
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
    `said` of the others, whose truth is not known.
    """

    checked: Verdicts = Verdicts()
    reviewed: Verdicts = Verdicts()
    said_no_worse: int = 0
    said_worse: int = 0
    bias: Bias = Bias()
    """Bias of the wrong verdicts."""

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
    """Counts of a judge's verdicts on pairs with known outcomes. Abstentions are counted apart: they do no harm."""

    judge: str
    true_no_worse: int
    false_worse: int
    true_worse: int
    false_no_worse: int
    abstained: int
    pairs: Literal["generated", "answered", "planted"] = "generated"
    """Whether the pairs were generated, are answers of a catalogue's tiers, or have planted errors."""
    decided: bool | None = None
    """What a sequential test ended with, which is valid at its own end; None where all pairs were counted."""
    bias: Bias | None = None
    """Bias of a judge that was tested on planted pairs."""
    in_use: InUse | None = None
    """What real pairs say on top, which then decides the weight and may end the trust. None for judges whose pairs are
    all the evidence.
    """

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


# Pseudo-verdicts per truth that a test on planted or generated pairs is worth.
PRIOR = 8.0
# The newest verdicts that count, and how many of them the share of "worse" counts for at most: it is that of other
# prompts than the checked ones.
NEWEST_VERDICTS, MOST_SHARED = 2_000, 400.0
# The score of a verification that an operator's review gave; `PEOPLE` is a caller's.
REVIEW: Final = "review"
# The score that is the answer's share of the characters of both answers.
LENGTH: Final = "length"

_RATES = (np.arange(81) + 0.5) / 81
_SHARES = (np.arange(61) + 0.5) / 61

Grid = NDArray[np.float64]


def in_use(prior: Calibration, pairs: RealPairs) -> InUse:
    """Return the error rates by `pairs` on top of the `prior`: means, and the balanced accuracy's 95% interval."""
    s, c, p = np.meshgrid(_RATES, _RATES, _SHARES, indexing="ij", sparse=True)
    counts = [a + b for a, b in zip(_prior_verdicts(prior), pairs.checked.in_order, strict=True)]
    log = counts[0] * np.log(s) + counts[1] * np.log1p(-s) + counts[2] * np.log(c) + counts[3] * np.log1p(-c)
    said_fine, said_worse = p * s + (1 - p) * (1 - c), p * (1 - s) + (1 - p) * c
    fine, worse = _shared(pairs)
    log = log + fine * np.log(said_fine) + worse * np.log(said_worse)
    right_fine, wrong_worse, right_worse, wrong_fine = pairs.reviewed.in_order
    log += right_fine * np.log(p * s / said_fine) + wrong_fine * np.log((1 - p) * (1 - c) / said_fine)
    log += right_worse * np.log((1 - p) * c / said_worse) + wrong_worse * np.log(p * (1 - s) / said_worse)
    posterior = np.exp(log - log.max()).sum(axis=2)
    posterior /= posterior.sum()
    return _summary(posterior, pairs)


def _prior_verdicts(prior: Calibration) -> tuple[float, ...]:
    """Return pseudo-verdicts by truth and verdict: answers of the catalogue's own tiers count in full."""
    counts = (prior.true_no_worse, prior.false_worse, prior.true_worse, prior.false_no_worse)
    if prior.pairs == "answered":
        return tuple(map(float, counts))
    shares = (prior.sensitivity, 1 - prior.sensitivity, prior.specificity, 1 - prior.specificity)
    return tuple(PRIOR * share for share in shares)


def _shared(pairs: RealPairs) -> tuple[float, float]:
    """Return how often the judge said of open answers that they are no worse, and worse, as far as that counts."""
    reviewed = pairs.reviewed
    fine = pairs.said_no_worse + reviewed.true_no_worse + reviewed.false_no_worse
    worse = pairs.said_worse + reviewed.true_worse + reviewed.false_worse
    scale = min(1.0, MOST_SHARED / max(fine + worse, 1))
    return scale * fine, scale * worse


def _summary(posterior: Grid, pairs: RealPairs) -> InUse:
    balanced = (_RATES[:, None] + _RATES[None, :]) / 2
    order = np.argsort(balanced, axis=None)
    below = np.cumsum(posterior.ravel()[order])
    low, high = (float(balanced.ravel()[order][np.searchsorted(below, level)]) for level in (0.025, 0.975))
    return InUse(
        pairs=pairs,
        sensitivity=float(posterior.sum(axis=1) @ _RATES),
        specificity=float(posterior.sum(axis=0) @ _RATES),
        low=low,
        high=high,
    )


async def newest_verdict(engine: AsyncEngine, judging: str) -> float:
    """Return when the newest verdict of the judge of that fingerprint was stored or reviewed; 0.0 without one."""
    query = select(func.max(verifications.c.finished_at)).where(verifications.c.judging == judging)
    async with engine.connect() as connection:
        return await connection.scalar(query) or 0.0


async def real_pairs(engine: AsyncEngine, judge: str, judging: str, since: float) -> RealPairs:
    """Count the newest verdicts of `judge` of the fingerprint `judging`, later than `since` (epoch seconds)."""
    v = verifications.c
    query = (
        select(v.judge, v.label, v.scores)
        .where(v.judging == judging, v.finished_at > since, has_verdict())
        .order_by(v.finished_at.desc())
        .limit(NEWEST_VERDICTS)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    checked, reviewed, said, bias = Verdicts(), Verdicts(), {True: 0, False: 0}, Bias()
    for decided, label, scores in rows:
        if (score := (scores or {}).get(judge)) is None:
            continue
        # A tie is no worse.
        truth, verdict = label != "worse", score > 0.0
        if decided == judge:
            said[verdict] += 1
        elif decided != PEOPLE:
            checked = checked.with_one(truth, verdict)
        elif REVIEW in scores:
            reviewed = reviewed.with_one(truth, verdict)
        else:
            continue
        if decided != judge and score == float(not truth) and LENGTH in scores:
            bias = bias.with_wrong(longer=(score == 1.0) is (scores[LENGTH] > 0.5))
    return RealPairs(checked=checked, reviewed=reviewed, said_no_worse=said[True], said_worse=said[False], bias=bias)
