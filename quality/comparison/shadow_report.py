"""The shadow report: what routing would have cost, how good its answers would have been, and how sure that is; also in
sentences, for people who decide whether to switch routing on.

Cost: the given answers' is known. That of the tiers that routing would have taken is predicted for every request and
multiplied by the ratio of measured to predicted costs among the shadow answers, a ratio estimate. Quality: the share
of the judged shadow answers that were no worse than the given ones, weighted by their inverse probabilities of being
drawn; requests that routing would have left where they were count as no worse."""

import asyncio
from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.comparison.shadow_answers import (
    NEWEST,
    Observed,
    ShadowAnswers,
    ShadowCase,
    observed_requests,
    shadow_answers,
    worst_cases,
)
from quality.estimates.costs import judge_test_usd
from quality.estimates.traffic import dollars
from quality.estimates.verified_sample import Tally, kind_share, sampling_weights
from quality.statistics import weighted_ratio
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import SamplingSettings

# With fewer verdicts a share is too uncertain to act on: even without a worse one, one answer in nine may be worse.
FEWEST = 30
_DAY = 86_400.0

METHOD = (
    "Saving: over all observed requests. What was paid is known; what the tier of routing would have cost is the paid "
    "amount scaled by the predicted costs of the two tiers, corrected by the ratio of measured to predicted cost among "
    "the shadow answers. The interval is that of this ratio (95%).",
    "Quality: shadow answers judged against the given answers, weighted by the inverse of their probability of being "
    "drawn (95%, Wilson's interval at the effective sample size). Requests that routing would have left at the same "
    "tier count as no worse. Only answered chats whose texts may be stored, without tools, can be judged; the others "
    "are taken to be like them.",
    "Not included: answers that routing would hand to the next tier by their own evidence, which costs a little more "
    "and helps quality, and cached prompt tokens of conversations, which shadow answers do not have.",
)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """`value` with its 95% interval; no interval where too little was measured."""

    value: float
    """The estimate, with its 95% interval; no interval where too little was measured."""
    low: float | None = None
    high: float | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What verification other than probes may cost in the trailing window, and has spent or reserved; US dollars."""

    budget_usd: float
    spent_usd: float

    @property
    def left_usd(self) -> float:
        """What is left of it."""
        return max(self.budget_usd - self.spent_usd, 0.0)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to know more."""

    verdicts: int
    """Further verdicts, for the first figure or for an interval of half the width."""
    cost_usd: float | None
    """What they cost at the price of a verdict so far; None while that is unknown."""
    days: float | None
    """How long they take at the pace so far; None while that is unknown."""
    budget_usd: float
    left_usd: float
    """What is left of `budget_usd` today."""


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """What routing would do with the last `requests` observed, from `since` to `until` (epoch seconds); US dollars."""

    requests: int
    since: float | None
    until: float | None
    same: int
    """Requests that routing would have left at the tier that answered."""
    paid_usd: float
    """What was paid."""
    would_be_usd: float
    """The estimate for routing."""
    verification_usd: float
    """What verifying these requests and testing the judge meanwhile cost."""
    saving: Estimate | None
    """The share that would have been saved."""
    saving_with_checks: float | None
    """The share saved after `verification_usd`."""
    cost_ratio: float
    """Measured cost over predicted cost of `priced` shadow answers, 1 without any."""
    priced: int
    quality: Estimate | None
    """The share of answers no worse than the given ones."""
    judged: int
    """Judged answers."""
    worse: int
    """How many of them were worse."""
    enough: bool
    """Whether they are enough to decide by."""
    judges: dict[str, float]
    shadows: ShadowAnswers
    """What became of the shadow answers."""
    precision: Precision
    sentences: list[str] = []
    method: list[str] = []
    cases: list[ShadowCase] = []


def summarised(
    observed: Sequence[Observed], shadows: ShadowAnswers, verification_usd: float, budget: Budget
) -> ShadowReport:
    """Estimate saving and quality from observed requests, newest first."""
    differing = [one for one in observed if not one.is_same]
    same, paid = len(observed) - len(differing), sum(one.paid_usd for one in observed)
    expected = sum(one.expected_usd for one in differing)
    priced = [one for one in differing if one.answer_usd is not None]
    ratio = weighted_ratio(
        [one.answer_usd or 0.0 for one in priced], [one.expected_usd for one in priced], _weights(priced)
    )
    cost_ratio, half = (1.0, None) if ratio is None else (ratio.value, ratio.half_width)
    would_be = paid - sum(one.paid_usd for one in differing) + cost_ratio * expected
    judged = [one for one in differing if one.label is not None]
    worse = sum(one.label == "worse" for one in judged)
    quality = _quality(judged, same, len(observed))
    enough = bool(observed) and (not differing or len(judged) >= FEWEST)
    saving = None
    if paid > 0:
        value = 1.0 - would_be / paid
        exact = 0.0 if not differing else None if half is None else half * expected / paid
        saving = _around(value, exact)
    return ShadowReport(
        requests=len(observed),
        since=observed[-1].created_at if observed else None,
        until=observed[0].created_at if observed else None,
        same=same,
        paid_usd=paid,
        would_be_usd=would_be,
        verification_usd=verification_usd,
        saving=saving,
        saving_with_checks=1.0 - (would_be + verification_usd) / paid if paid > 0 else None,
        cost_ratio=cost_ratio,
        priced=len(priced),
        quality=quality,
        judged=len(judged),
        worse=worse,
        enough=enough,
        judges={one.judge: one.reliability for one in judged if one.judge is not None},
        shadows=shadows,
        precision=_precision(observed, len(judged), shadows, budget),
        method=list(METHOD),
    )


def _weights(drawn: Sequence[Observed]) -> list[float]:
    return sampling_weights([one.probability for one in drawn], [one.reason for one in drawn])


def _quality(judged: Sequence[Observed], same: int, requests: int) -> Estimate | None:
    """Return the share no worse over all requests: that of the judged ones stands for all that differ."""
    if not requests:
        return None
    if same == requests:
        return Estimate(value=1.0, low=1.0, high=1.0)
    if not judged:
        return None
    tally = Tally()
    for one, weight in zip(judged, _weights(judged), strict=True):
        tally += Tally(1, weight, weight * weight, weight * (one.label != "worse"))
    share, differing = kind_share(tally, None), (requests - same) / requests
    value, low, high = (1.0 - differing * (1.0 - p) for p in (share.value or 0.0, share.low, share.high))
    return Estimate(value=value, low=low, high=high)


def _around(value: float, half: float | None) -> Estimate:
    if half is None:
        return Estimate(value=value)
    return Estimate(value=value, low=value - half, high=min(value + half, 1.0))


def _precision(observed: Sequence[Observed], judged: int, shadows: ShadowAnswers, budget: Budget) -> Precision:
    # The width of an interval falls with the root of the number of verdicts.
    verdicts = FEWEST - judged if judged < FEWEST else 3 * judged
    price = shadows.cost_usd / shadows.judged if shadows.judged else None
    span = observed[0].created_at - observed[-1].created_at if observed else 0.0
    return Precision(
        verdicts=verdicts,
        cost_usd=None if price is None else price * verdicts,
        days=verdicts / judged * span / _DAY if judged and span > 0 else None,
        budget_usd=budget.budget_usd,
        left_usd=budget.left_usd,
    )


def in_words(report: ShadowReport) -> list[str]:
    """Return sentences: the saving, the quality, what is too little to decide by, and what knowing more would cost."""
    if not report.requests:
        return ["No request has been answered in observe mode yet: aio knobs routing mode=observe starts it."]
    found = [_saving(report), _quality_in_words(report)]
    if not report.enough:
        found.append(
            f"That is too little to decide by: {_counted(report.judged, 'answer')} "
            f"{'has' if report.judged == 1 else 'have'} been judged, and {FEWEST} are needed at least."
        )
    found += _troubles(report)
    if report.same < report.requests:
        found.append(_precision_in_words(report))
    return found


def _saving(report: ShadowReport) -> str:
    head = f"On your last {_counted(report.requests, 'request')} routing would have cost"
    if report.saving is None:
        return f"{head} {dollars(report.would_be_usd)}; the given answers cost nothing, so there is nothing to save."
    text = f"{head} {less(report.saving)}: {dollars(report.would_be_usd)} instead of {dollars(report.paid_usd)}"
    if report.saving_with_checks is not None and report.verification_usd > 0:
        with_checks = less(Estimate(value=report.saving_with_checks))
        text += f", and {with_checks} with the {dollars(report.verification_usd)} that verification cost"
    if report.same == report.requests:
        return f"{text}. It would have taken the tiers that answered."
    if not report.priced:
        text += " (predicted: no shadow answer has measured it yet)"
    return f"{text}."


def _quality_in_words(report: ShadowReport) -> str:
    if report.quality is None:
        return "Judged quality: not known yet, because no shadow answer has been judged."
    text = f"Judged quality: {report.quality.value:.1%}{_interval(report.quality)} of the answers no worse"
    if report.judged:
        text += f", by {_counted(report.judged, 'judged answer')} of which {report.worse} {_were(report.worse)} worse"
    if report.shadows.undecided:
        text += f"; {report.shadows.undecided:,} more got no verdict and {_were(report.shadows.undecided)} left out"
    if report.same:
        text += f"; for {report.same / report.requests:.0%} of the requests routing would have changed nothing"
    return f"{text}."


def _troubles(report: ShadowReport) -> list[str]:
    shadows, found = report.shadows, []
    if shadows.waiting:
        found.append(f"{_counted(shadows.waiting, 'shadow answer')} {_were(shadows.waiting, 'is', 'are')} waiting.")
    if shadows.undecided:
        found.append(
            f"{_counted(shadows.undecided, 'shadow answer')} got no verdict, because an answer was cut off, opinions "
            "differed or no judge that is trusted decides such answers: aio quality calibrate measures the judges."
        )
    if shadows.failed:
        because = f", for example: {shadows.error}" if shadows.error else ""
        found.append(f"{_counted(shadows.failed, 'shadow answer')} failed{because or '.'}")
    return found


def _precision_in_words(report: ShadowReport) -> str:
    needed = report.precision
    aim = "For a first figure it takes" if report.judged < FEWEST else "For intervals half as wide it takes"
    text = f"{aim} {needed.verdicts:,} more verdicts"
    if needed.cost_usd is not None:
        text += f", {dollars(needed.cost_usd)} at the price so far"
    if needed.days is not None:
        text += f" and {_days(needed.days)} at the pace so far"
    return f"{text}; {dollars(needed.left_usd)} of the budget of {dollars(needed.budget_usd)} a day is left."


def less(saving: Estimate) -> str:
    """Format a saving as "62.1% less [58.0%, 66.2%]", or as an increase."""
    if saving.value >= 0:
        return f"{saving.value:.1%} less{_interval(saving)}"
    low, high = (None if bound is None else -bound for bound in (saving.high, saving.low))
    return f"{-saving.value:.1%} more{_interval(Estimate(value=-saving.value, low=low, high=high))}"


def _interval(one: Estimate) -> str:
    return "" if one.low is None or one.high is None else f" [{one.low:.1%}, {one.high:.1%}]"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def _were(count: int, one: str = "was", more: str = "were") -> str:
    return one if count == 1 else more


def _days(days: float) -> str:
    return f"{days:,.0f} days" if days >= 2 else f"{days * 24:,.0f} hours" if days >= 2 / 24 else "less than two hours"


async def budget_now(engine: AsyncEngine, sampling: SamplingSettings, now: float) -> Budget:
    """Return the budget that shadows share with other verification, except for probes."""
    spending = await VerificationQueue(engine, sampling, lease_seconds=0.0, max_attempts=1).spending(now)
    budget = sampling.budget_for("shadow", spending) + sampling.beyond("shadow", spending)
    return Budget(budget_usd=budget, spent_usd=spending.committed("shadow"))


async def shadow_report(engine: AsyncEngine, budget: Budget, since: float = 0.0, newest: int = NEWEST) -> ShadowReport:
    """Report on at most `newest` observed requests created at `since` (epoch seconds) or later."""
    observed = await observed_requests(engine, since, newest)
    if observed:
        shadows, verification_usd = await shadow_answers(engine, observed[-1].created_at)
        async with engine.connect() as connection:
            verification_usd += await judge_test_usd(connection, observed[-1].created_at)
    else:
        shadows, verification_usd = ShadowAnswers(), 0.0
    cases = await worst_cases(engine, observed)
    found = await asyncio.to_thread(summarised, observed, shadows, verification_usd, budget)
    return msgspec.structs.replace(found, sentences=in_words(found), cases=cases)
