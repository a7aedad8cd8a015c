"""The figures of the shadow report: what routing would have cost, how good its answers would have been, and how sure
that is.

Cost: the given answers' is known. That of the tiers that routing would have taken is predicted for every request and
multiplied by the ratio of measured to predicted costs among the shadow answers, a ratio estimate. Quality: the share
of the judged shadow answers that were no worse than the given ones, weighted by their inverse probabilities of being
drawn; requests that routing would have left where they were count as no worse.
"""

from collections.abc import Sequence

import msgspec

from quality.estimates.kinds import Tally, kind_share, sampling_weights
from quality.shadow.cases import ShadowCase
from quality.shadow.observed import Observed, ShadowAnswers
from quality.statistics import weighted_ratio

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
    low: float | None = None
    high: float | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What verification other than probes may cost in the trailing window, and what it has spent or reserved; US
    dollars."""

    budget_usd: float
    spent_usd: float

    @property
    def left_usd(self) -> float:
        """What is left of it."""
        return max(self.budget_usd - self.spent_usd, 0.0)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to know more: `verdicts` further ones, for the first figure or for an interval of half the width.

    They cost `cost_usd` at the price of a verdict so far and take `days` at the pace so far; None while neither is
    known. `left_usd`: what is left of `budget_usd` today.
    """

    verdicts: int
    cost_usd: float | None
    days: float | None
    budget_usd: float
    left_usd: float


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """What routing would have done with the last `requests` answered in observe mode, from `since` to `until` (epoch
    seconds); US dollars.

    `same`: requests that routing would have left at the tier that answered. `paid_usd` was paid; `would_be_usd` is the
    estimate for routing. `saving` is the share saved, and `saving_with_checks` that after `verification_usd`, the cost
    of verifying these requests and of testing the judge meanwhile. `cost_ratio`: measured cost over predicted cost of
    `priced` shadow answers, 1 without any. `quality`: the share of answers no worse than the given ones; `judged`
    answers, of which `worse` were worse.
    `enough`: whether that is enough to decide by. `shadows`: what became of the shadow answers.
    """

    requests: int
    since: float | None
    until: float | None
    same: int
    paid_usd: float
    would_be_usd: float
    verification_usd: float
    saving: Estimate | None
    saving_with_checks: float | None
    cost_ratio: float
    priced: int
    quality: Estimate | None
    judged: int
    worse: int
    enough: bool
    judges: dict[str, float]
    shadows: ShadowAnswers
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
