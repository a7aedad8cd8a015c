"""What routing would have cost, and how good its answers would have been, while it was only observed.

Cost: the given answers' is known. That of the tiers that routing would have taken is predicted for every request and
multiplied by the ratio of measured to predicted costs among the shadow answers, a ratio estimate. Quality: the share
of the judged shadow answers that were no worse than the given ones, weighted by their inverse probabilities of being
drawn. Requests that routing would have left where they were count as no worse. Only answered chats whose texts may be
stored, without tools, can be judged; the others are taken to be like them.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests, routing_decisions
from quality.estimates.costs import NetSaving, Spent, dollars, judge_test_usd, net_saving
from quality.estimates.verified_sample import UNCERTAIN, Tally, has_verdict, kind_share, sampling_weights
from quality.records.record import inputs_reader
from quality.statistics import weighted_ratio

NEWEST = 5_000
"""The most requests that are read, so that the cost does not grow with the traffic."""
FEWEST = 30
"""With fewer verdicts a share is too uncertain to act on: even without a worse one, one answer in nine may be worse."""
WORST = 20
"""Judged answers that are listed."""
_ASKING = ("shadow", "probe")
"""Verifications whose judged answer is that of the tier that routing would have taken. A probe asks it too."""
_WORST_FIRST = {"worse": 0, "tie": 1, "no_worse": 2}


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """An answered request, and what routing would have done with it. US dollars."""

    request_id: str
    created_at: float
    given: int
    """The tier that answered."""
    would_be: int
    """The tier that routing would have taken."""
    paid_usd: float
    expected_usd: float
    """What `would_be` would have cost: the paid amount times the quotient of the two tiers' predicted costs."""
    answer_usd: float | None = None
    """What `would_be`'s shadow answer cost; None without one."""
    label: str | None = None
    """The verdict on that answer against the given one; None without one."""
    judge: str | None = None
    reliability: float = 0.0
    """The deciding judge's balanced accuracy."""
    drawn_as: str = ""
    probability: float = 1.0
    """Of the draw."""

    @property
    def is_same(self) -> bool:
        """Whether routing would have taken the tier that answered: nothing would have changed."""
        return self.given == self.would_be


class ShadowAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the shadow answers."""

    waiting: int = 0
    judged: int = 0
    undecided: int = 0
    """No judge that is trusted decided, opinions differed, or an answer was cut off."""
    failed: int = 0
    """Given up after several attempts."""
    error: str | None = None
    """Of one that failed."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A 95% interval; without bounds where too little was measured."""

    value: float
    low: float | None = None
    high: float | None = None


class ObservedRouting(msgspec.Struct, frozen=True, kw_only=True):
    """What routing would have done with the newest `requests` that were observed."""

    requests: int
    same: int
    """Requests that routing would have left at the tier that answered."""
    net: NetSaving
    """Of routing as if it had answered, with what was paid in place of the strongest tier's costs."""
    net_share: Interval | None
    """`net.share` with its interval, that of `cost_ratio`."""
    cost_ratio: float
    """Measured over predicted cost of `priced` shadow answers; 1 without any."""
    priced: int
    no_worse: Interval | None
    """Share of the answers no worse than the given ones, by Wilson's interval at the effective sample size."""
    judged: int
    worse: int
    judges: dict[str, float]
    """The judges' balanced accuracy."""
    shadows: ShadowAnswers
    worst: list[Observed]
    """The judged answers that fared worst, the surest judge's first."""

    @property
    def is_enough(self) -> bool:
        """Whether it is enough to decide by."""
        return self.requests > 0 and (self.same == self.requests or self.judged >= FEWEST)


async def observed_routing(engine: AsyncEngine, since: float, until: float) -> ObservedRouting:
    """Report on the newest requests that were observed from `since` to before `until` (epoch seconds)."""
    observed = await observed_requests(engine, since, until)
    if not observed:
        return summarise(observed, ShadowAnswers(), 0.0)
    began = observed[-1].created_at
    shadows, checks_usd = await shadow_answers(engine, began, until)
    async with engine.connect() as connection:
        checks_usd += await judge_test_usd(connection, began, until)
    return await asyncio.to_thread(summarise, observed, shadows, checks_usd)


async def observed_requests(engine: AsyncEngine, since: float, until: float) -> list[Observed]:
    """Return at most `NEWEST` observed requests, the newest first. Those of a ladder with another number of tiers than
    the newest request's are left out."""
    d, r, v = routing_decisions.c, requests.c, verifications.c
    judged = and_(
        v.request_id == d.request_id,
        v.tier == d.would_be_tier,
        v.verifier_tier == r.tier,
        v.status == "done",
        v.sampled_reason.in_(_ASKING),
    )
    query = (
        select(
            d.request_id,
            d.created_at,
            r.tier,
            d.would_be_tier,
            r.cost_usd,
            d.decision,
            v.judged_cost_usd,
            v.label,
            v.judge,
            v.judge_reliability,
            v.sampled_reason,
            v.sampled_probability,
        )
        .join(requests, r.request_id == d.request_id)
        .outerjoin(verifications, judged)
        .where(d.would_be_tier.is_not(None), d.created_at >= since, d.created_at < until)
        .where(r.status == "ok", r.tier.is_not(None))
        .order_by(d.created_at.desc())
        .limit(NEWEST)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return await asyncio.to_thread(_read, rows)


async def shadow_answers(engine: AsyncEngine, since: float, until: float) -> tuple[ShadowAnswers, float]:
    """Count the shadow answers to requests of the period. The second value is what all verification of them cost, in US
    dollars."""
    d, v = routing_decisions.c, verifications.c
    group = (v.sampled_reason, v.status, has_verdict())
    query = (
        select(*group, func.count(), func.sum(v.cost_usd), func.max(v.error))
        .join(routing_decisions, d.request_id == v.request_id)
        .where(d.would_be_tier.is_not(None), d.created_at >= since, d.created_at < until, v.status != "skipped")
        .group_by(*group)
    )
    async with engine.connect() as connection:
        groups = (await connection.execute(query)).all()
    counts = {"waiting": 0, "judged": 0, "undecided": 0, "failed": 0}
    error, total_usd = None, 0.0
    for reason, status, has_label, count, usd, message in groups:
        total_usd += usd
        if reason == "shadow":
            outcome = {"pending": "waiting", "failed": "failed"}.get(status, "judged" if has_label else "undecided")
            counts[outcome] += count
            error = message if status == "failed" else error
    return ShadowAnswers(error=error, **counts), total_usd


def summarise(observed: Sequence[Observed], shadows: ShadowAnswers, checks_usd: float) -> ObservedRouting:
    """Estimate cost and quality of routing from observed requests, newest first."""
    differing = [request for request in observed if not request.is_same]
    paid, expected = sum(r.paid_usd for r in observed), sum(r.expected_usd for r in differing)
    priced = [request for request in differing if request.answer_usd is not None]
    ratio = weighted_ratio([r.answer_usd or 0.0 for r in priced], [r.expected_usd for r in priced], _weights(priced))
    cost_ratio, half = (1.0, None) if ratio is None else (ratio.value, ratio.half_width)
    would_be = paid - sum(r.paid_usd for r in differing) + cost_ratio * expected
    net = net_saving(Spent(requests=len(observed), cost_usd=would_be, baseline_usd=paid), checks_usd)
    judged = [request for request in differing if request.label is not None]
    return ObservedRouting(
        requests=len(observed),
        same=len(observed) - len(differing),
        net=net,
        net_share=_net_share(net, None if half is None else half * expected, exact=not differing),
        cost_ratio=cost_ratio,
        priced=len(priced),
        no_worse=_no_worse(judged, len(differing), len(observed)),
        judged=len(judged),
        worse=sum(request.label == "worse" for request in judged),
        judges={request.judge: request.reliability for request in judged if request.judge is not None},
        shadows=shadows,
        worst=sorted(judged, key=_badness)[:WORST],
    )


def _net_share(net: NetSaving, half_usd: float | None, *, exact: bool) -> Interval | None:
    if net.share is None:
        return None
    if exact:
        return Interval(value=net.share, low=net.share, high=net.share)
    if half_usd is None:
        return Interval(value=net.share)
    half = half_usd / net.strongest_usd
    return Interval(value=net.share, low=net.share - half, high=min(net.share + half, 1.0))


def _no_worse(judged: Sequence[Observed], differing: int, total: int) -> Interval | None:
    """Return the share no worse over all requests: that of the judged ones stands for all that differ."""
    if not total or (differing and not judged):
        return None
    tally = Tally()
    for request, weight in zip(judged, _weights(judged), strict=True):
        tally += Tally(1, weight, weight * weight, weight * (request.label != "worse"))
    share = kind_share(tally, None)
    value, low, high = (1.0 - differing / total * (1.0 - p) for p in (share.value or 0.0, share.low, share.high))
    return Interval(value=value, low=low, high=high)


def _weights(drawn: Sequence[Observed]) -> list[float]:
    return sampling_weights([request.probability for request in drawn], [request.drawn_as for request in drawn])


def _badness(request: Observed) -> tuple[int, float, float]:
    return _WORST_FIRST.get(request.label or "", 2), -request.reliability, -request.created_at


class _Inputs(msgspec.Struct):
    costs: list[float]


_inputs = inputs_reader(_Inputs)


def _read(rows: Iterable[Sequence[Any]]) -> list[Observed]:
    observed: list[Observed] = []
    tiers = 0
    for request_id, at, given_tier, would_be, paid, decision, answer_usd, label, judge, reliability, reason, p in rows:
        try:
            costs = _inputs(decision).costs
        except msgspec.ValidationError:
            # Another release wrote it, and this one cannot read it.
            continue
        tiers = tiers or len(costs)
        if len(costs) != tiers or max(given_tier, would_be) > tiers:
            continue
        # What was paid knows answer length and cache; a tier that costs nothing gives no scale.
        scale = paid / costs[given_tier - 1] if costs[given_tier - 1] > 0 else 1.0
        observed.append(
            Observed(
                request_id=request_id,
                created_at=at,
                given=given_tier,
                would_be=would_be,
                paid_usd=paid,
                expected_usd=scale * costs[would_be - 1],
                answer_usd=answer_usd,
                # Opinions that differ are no verdict.
                label=None if label == UNCERTAIN else label,
                judge=judge,
                reliability=reliability or 0.0,
                drawn_as=reason or "",
                probability=p or 1.0,
            )
        )
    return observed


def in_words(routing: ObservedRouting) -> list[str]:
    """Return sentences: what routing would have saved, how good it would have been, and what is missing to say so."""
    if not routing.requests:
        return []
    sentences = [_saving_in_words(routing), _quality_in_words(routing)]
    if not routing.is_enough:
        sentences.append(
            f"That is too little to decide by: {routing.judged} of at least {FEWEST} answers have been judged."
        )
    shadows = routing.shadows
    if shadows.waiting:
        sentences.append(f"Shadow answers that wait to be judged: {shadows.waiting:,}.")
    if shadows.undecided:
        sentences.append(
            f"Shadow answers without a verdict, which are left out: {shadows.undecided:,}. An answer was cut off, "
            "opinions differed or no trusted judge decides such answers; aio quality calibrate measures the judges."
        )
    if shadows.failed:
        because = f", for example: {shadows.error}" if shadows.error else "."
        sentences.append(f"Shadow answers that failed: {shadows.failed:,}{because}")
    return sentences


def _saving_in_words(routing: ObservedRouting) -> str:
    net = routing.net
    start = f"While routing was only observed, over the newest {routing.requests:,} requests, it would have cost"
    if routing.net_share is None:
        return f"{start} {dollars(net.paid_usd)}; the given answers cost nothing, so there is nothing to save."
    text = f"{start} {dollars(net.paid_usd)} instead of {dollars(net.strongest_usd)}"
    text += f", and checks cost {dollars(net.checks_usd)}: {_less(routing.net_share)}"
    if routing.same == routing.requests:
        return f"{text}. It would have taken the tiers that answered."
    return f"{text}." if routing.priced else f"{text} (predicted: no shadow answer has measured it yet)."


def _quality_in_words(routing: ObservedRouting) -> str:
    if routing.no_worse is None:
        return "How good its answers would have been is not known yet, because no shadow answer has been judged."
    text = f"Of its answers {_bounded(routing.no_worse)} would have been no worse than the given ones"
    if routing.judged:
        text += f", by {routing.judged:,} judged answers, {routing.worse:,} of them worse"
    if routing.same:
        text += f"; for {routing.same / routing.requests:.0%} of the requests routing would have changed nothing"
    return f"{text}."


def _less(saving: Interval) -> str:
    """Format a saving as "62.1% less [58.0%, 66.2%]", or as an increase."""
    if saving.value >= 0:
        return _bounded(saving, " less")
    low, high = (None if bound is None else -bound for bound in (saving.high, saving.low))
    return _bounded(Interval(value=-saving.value, low=low, high=high), " more")


def _bounded(interval: Interval, unit: str = "") -> str:
    bounds = "" if interval.low is None or interval.high is None else f" [{interval.low:.1%}, {interval.high:.1%}]"
    return f"{interval.value:.1%}{unit}{bounds}"
