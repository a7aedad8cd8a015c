"""A summary of the newest requests: what was asked, which tiers answered, the cost and the expected quality; also as
text."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity, likeliest
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests, routing_decisions
from quality.estimates.verified_sample import KindShare
from quality.records.record import inputs_reader

# The most requests that are read, so that the cost does not grow with the traffic.
NEWEST = 1000
# Labels are counted up to this number.
MOST_COUNTED = 10_000
_TWO_SIDED = 1.96


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An answered request that was routed among several tiers. Costs are US dollars."""

    created_at: float
    """Epoch seconds."""
    key_id: str | None
    tier: int
    """The tier that answered. In observe mode it is the tier that routing would have taken, and `paid_usd` and
    `strongest_usd` are predicted.
    """
    watched: bool
    """Whether routing was only observed."""
    complexity: Complexity | None
    """The most likely class, if there is one."""
    p_ok: float
    """P(the tier's answer is as good as the strongest's)."""
    labels: float
    """The number of labels behind `p_ok`."""
    paid_usd: float
    strongest_usd: float
    costs: list[float]
    """Predicted costs by tier."""
    inputs: str
    """Inputs of the decision, as JSON."""


class ClassTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a complexity class: their number, their share of the classed, and how many each tier answered."""

    name: str
    requests: int
    share: float
    tiers: list[int]


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the newest `requests`; US dollars."""

    requests: int
    tiers: list[int]
    """By tier, the requests that it answered."""
    classes: list[ClassTraffic]
    paid_usd: float
    strongest_usd: float
    """What the strongest tier alone would have cost."""
    saving: float | None
    """The share of `strongest_usd` that was saved, with its 95% interval."""
    saving_low: float | None
    saving_high: float | None
    p_ok: float | None
    """Mean P(as good as the strongest's answer)."""
    with_labels: int
    """For how many of the requests `p_ok` rests on labels; for the others it rests on what AIO ships with."""
    watched: bool
    """Whether routing was only observed; the numbers are then what routing would have done, by predicted costs."""


async def newest_requests(engine: AsyncEngine, since: float = 0.0, newest: int = NEWEST) -> list[RoutedRequest]:
    """Return at most `newest` requests created at `since` (epoch seconds) or later, the newest first.

    Requests that name their tier are left out, and those of ladders with more or fewer tiers than the newest.
    """
    decided = routing_decisions.c
    query = (
        select(
            requests.c.created_at,
            requests.c.key_id,
            requests.c.tier,
            decided.would_be_tier,
            requests.c.cost_usd,
            requests.c.baseline_cost_usd,
            decided.decision,
        )
        .join(routing_decisions, decided.request_id == requests.c.request_id)
        .where(requests.c.created_at >= since, requests.c.status == "ok", requests.c.tier.is_not(None))
        .order_by(requests.c.created_at.desc())
        .limit(newest)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return await asyncio.to_thread(_read, rows)


async def stored_labels(engine: AsyncEngine) -> int:
    """Count the prompts with labels, up to `MOST_COUNTED`."""
    some = select(training_rows.c.training_row_id).limit(MOST_COUNTED).subquery()
    async with engine.connect() as connection:
        return await connection.scalar(select(func.count()).select_from(some)) or 0


def traffic(routed: Sequence[RoutedRequest]) -> Traffic:
    """Summarise requests of one ladder."""
    tiers = len(routed[0].costs) if routed else 0
    counted = decided_or_watched(routed)
    paid = np.array([one.paid_usd for one in counted], np.float64)
    strongest = np.array([one.strongest_usd for one in counted], np.float64)
    saving, low, high = _saving(paid, strongest)
    classed = [one for one in counted if one.complexity is not None]
    return Traffic(
        requests=len(counted),
        tiers=_by_tier(counted, tiers),
        classes=[
            _of_class(name, [one for one in classed if one.complexity == name], len(classed), tiers)
            for name in (Complexity if classed else ())
        ],
        paid_usd=float(paid.sum()),
        strongest_usd=float(strongest.sum()),
        saving=saving,
        saving_low=low,
        saving_high=high,
        p_ok=round(sum(one.p_ok for one in counted) / len(counted), 4) if counted else None,
        with_labels=sum(one.labels > 0 for one in counted),
        watched=bool(counted) and counted[0].watched,
    )


def decided_or_watched(routed: Sequence[RoutedRequest]) -> list[RoutedRequest]:
    """Return the requests that routing decided, for which its costs were paid; all where it was only observed."""
    return [one for one in routed if not one.watched] or list(routed)


def in_words(seen: Traffic) -> list[str]:
    """Return sentences on which tiers answered, the cost, what was asked, and the expected quality."""
    if not seen.requests:
        return []
    most = max(range(len(seen.tiers)), key=lambda k: seen.tiers[k])
    share = seen.tiers[most] / seen.requests
    requests_, tier = _counted(seen.requests), most + 1
    if seen.watched:
        text = f"Routing is only watched. Of the last {requests_} it would send {share:.0%} to tier {tier}."
        cost, always = "That would cost", f"tier {len(seen.tiers)} for all would cost"
    else:
        text = f"Of the last {requests_}, {share:.0%} were answered by tier {tier}."
        cost, always = "That cost", f"always tier {len(seen.tiers)} would have cost"
    if seen.saving is not None:
        less = _less(seen.saving, seen.saving_low, seen.saving_high)
        text += f" {cost} {dollars(seen.paid_usd)}; {always} {dollars(seen.strongest_usd)}: {less}."
    found = [text]
    if seen.classes:
        mix = [f"{one.share:.0%} {one.name}" for one in seen.classes if one.requests]
        found.append(f"By difficulty they are {_listed(mix)}.")
    return found


def expected_in_words(seen: Traffic, labels: int, verified: KindShare | None = None) -> str:
    """Return sentences on the expected quality and its basis. `labels`: the number of prompts with labels; `verified`:
    the share of all answers that were as good as the strongest tier's, by a verified sample."""
    strongest = len(seen.tiers)
    if seen.p_ok is None:
        return ""
    text = f"{seen.p_ok:.0%} of the answers are expected to be as good as tier {strongest}'s."
    if not labels:
        text += " That is not measured yet (0 verified answers): it is the general estimate that AIO ships with."
    elif not seen.with_labels:
        text += (
            f" No label counted when these requests were routed ({labels:,} are stored now): it is the general "
            "estimate that AIO ships with."
        )
    else:
        share = seen.with_labels / seen.requests
        text += f" For {share:.0%} of the requests this rests on labels; there are {labels:,}."
    if verified is not None and verified.value is not None:
        text += (
            f" Verified on a sample of {verified.answers:,} answers: {verified.value:.0%} [{verified.low:.0%}, "
            f"{verified.high:.0%}] were as good."
        )
    return text


def dollars(value: float) -> str:
    """Format US dollars with cents, small amounts with two digits."""
    if value == 0 or abs(value) >= 1:
        return f"${value:,.2f}"
    return f"${value:.{1 - math.floor(math.log10(abs(value)))}f}"


class _Prediction(msgspec.Struct):
    p_ok: list[float]
    classes: list[float] = []
    labels: list[float] = []


class _Rules(msgspec.Struct):
    tier: int | None = None


class _Inputs(msgspec.Struct):
    prediction: _Prediction
    costs: list[float]
    pinned_tier: int | None = None
    rules: _Rules | None = None

    @property
    def is_routed(self) -> bool:
        """Whether routing chose: neither the request nor a rule names its tier."""
        return self.pinned_tier is None and (self.rules is None or self.rules.tier is None)


_inputs = msgspec.json.Decoder(_Inputs).decode
_whole = inputs_reader(msgspec.Raw)


def _read(rows: Iterable[Sequence[Any]]) -> list[RoutedRequest]:
    found: list[RoutedRequest] = []
    for created, key, answered, would_be, cost, baseline, stored in rows:
        try:
            whole = bytes(_whole(stored))
            inputs = _inputs(whole)
        except msgspec.ValidationError:
            # Another release wrote it, and this one cannot read it.
            continue
        tier = msgspec.convert(answered if would_be is None else would_be, int)
        tiers = len(found[0].costs) if found else len(inputs.costs)
        if not inputs.is_routed or len(inputs.costs) != tiers or tier > tiers:
            continue
        prediction, watched = inputs.prediction, would_be is not None
        classes = prediction.classes
        found.append(
            RoutedRequest(
                created_at=msgspec.convert(created, float),
                key_id=None if key is None else str(key),
                tier=tier,
                watched=watched,
                complexity=likeliest(classes) if classes else None,
                p_ok=prediction.p_ok[tier - 1],
                labels=max(prediction.labels, default=0.0),
                paid_usd=inputs.costs[tier - 1] if watched else msgspec.convert(cost, float),
                strongest_usd=inputs.costs[-1] if watched else msgspec.convert(baseline, float),
                costs=inputs.costs,
                inputs=whole.decode(),
            )
        )
    return found


def _of_class(complexity: Complexity, mine: Sequence[RoutedRequest], classed: int, tiers: int) -> ClassTraffic:
    return ClassTraffic(
        name=complexity.name, requests=len(mine), share=round(len(mine) / classed, 4), tiers=_by_tier(mine, tiers)
    )


def _by_tier(routed: Sequence[RoutedRequest], tiers: int) -> list[int]:
    return [sum(one.tier == tier for one in routed) for tier in range(1, tiers + 1)]


def _saving(paid: np.ndarray, strongest: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Return 1 minus the ratio of two sums, with the interval of a ratio (Cochran, Sampling Techniques 6.4)."""
    if not len(paid) or strongest.sum() <= 0:
        return None, None, None
    ratio = float(paid.sum() / strongest.sum())
    if len(paid) == 1:
        return round(1 - ratio, 4), None, None
    spread = (paid - ratio * strongest).std(ddof=1) / (math.sqrt(len(paid)) * strongest.mean())
    half = _TWO_SIDED * float(spread)
    return round(1 - ratio, 4), round(1 - ratio - half, 4), round(1 - ratio + half, 4)


def _less(saving: float, low: float | None, high: float | None) -> str:
    """Format a saving as "79% less [75%, 83%]", or as an increase."""
    word = "less"
    if saving < 0:
        saving, low, high = -saving, None if high is None else -high, None if low is None else -low
        word = "more"
    return f"{saving:.0%} {word}" + ("" if low is None or high is None else f" [{low:.0%}, {high:.0%}]")


def _counted(count: int) -> str:
    return "request" if count == 1 else f"{count:,} requests"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
