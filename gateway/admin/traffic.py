"""The traffic over time, for programs (`GET /admin/api/traffic`) and as the charts of the overview."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import QueryParameter
from litestar.response import Response

from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.base.errors import ApiError
from gateway.base.numbers import utc_text
from gateway.operations.dashboard.html.charts import DASHES, Event, Series, Timeline
from quality.estimates.traffic import Bucket, Change, Span, Traffic

SPAN_NAMES: Mapping[Span, str] = {"15m": "15 minutes", "1h": "1 hour", "24h": "24 hours", "7d": "7 days"}
LAST: Mapping[Span, str] = {**SPAN_NAMES, "1h": "hour"}
"""The spans as they follow "in the last"."""
USUAL_SPAN: Span = "1h"

SpanQuery = Annotated[Span, QueryParameter(description="How far back, from now.")]


@get("/traffic", summary="Show the traffic over time")
async def show_traffic(admin: Admin, as_csv: AsCsv, span: SpanQuery = USUAL_SPAN) -> Response[Traffic]:
    """Requests by tier, failures, refusals, cost and times to the first token, of all keys. As CSV: a row a bucket.
    The figures are read at most every 10 seconds."""
    traffic = await admin.operations.live.traffic.look(span)
    if traffic is None:
        raise ApiError(503, "The database does not answer.", code="database_unavailable")
    tiers = sorted(traffic.together.answered)
    rows = [_flat(bucket, tiers) for bucket in traffic.buckets]
    return json_or_csv(as_csv, "traffic", traffic, list(rows[0]), rows)


def _flat(bucket: Bucket, tiers: Sequence[int]) -> dict[str, Any]:
    row = msgspec.structs.asdict(bucket)
    answered = row.pop("answered")
    return row | {f"tier_{number}": answered.get(number, 0) for number in tiers}


def lettered(changes: Sequence[Change]) -> list[tuple[str, Change]]:
    """Return changes, newest first, with their letters on the charts, where the oldest is A."""
    return list(zip(reversed(ascii_uppercase[: len(changes)]), changes, strict=True))


def charts_of(traffic: Traffic, names: Mapping[int, str]) -> list[Timeline]:
    """Return the charts of requests, of failures, of refusals, of first tokens and of costs, with lines where something
    was changed. `names`: of the tiers that serve now."""
    events = [
        Event(change.at, letter, f"{letter}, {utc_text(change.at)}: {change.what}: {change.subject}")
        for letter, change in reversed(lettered(traffic.changes))
    ]
    return [msgspec.structs.replace(shown, events=events) for shown in _charts(traffic, names)]


def _charts(traffic: Traffic, names: Mapping[int, str]) -> list[Timeline]:
    buckets = traffic.buckets
    times = [bucket.at for bucket in buckets]
    failed = _per(traffic, 60.0, [bucket.failed for bucket in buckets])
    refused = _per(traffic, 60.0, [bucket.refused for bucket in buckets])
    return [
        Timeline(title="Requests per minute", times=times, series=_by_tier(traffic, names), format="number"),
        Timeline(
            title="Failed per minute",
            times=times,
            series=[Series(name="failed", values=failed, colour="bad")],
            format="number",
        ),
        # Apart: next to a burst of refusals an outage would be a flat line.
        Timeline(
            title="Refused per minute",
            times=times,
            series=[Series(name="refused", values=refused, colour="warn")],
            format="number",
        ),
        Timeline(
            title="Time to first token",
            times=times,
            series=[
                Series(name="p50", values=[bucket.ttft_p50 for bucket in buckets], colour="quiet"),
                Series(name="p95", values=[bucket.ttft_p95 for bucket in buckets], colour="ink", dashes=DASHES[2]),
            ],
            format="seconds",
        ),
        cost_chart(traffic),
    ]


def cost_chart(traffic: Traffic) -> Timeline:
    """Return the chart of what was paid and of what the strongest tier alone would have cost."""
    paid = _per(traffic, 3600.0, [bucket.cost_usd for bucket in traffic.buckets])
    strongest = _per(traffic, 3600.0, [bucket.strongest_usd for bucket in traffic.buckets])
    return Timeline(
        title="Cost per hour",
        times=[bucket.at for bucket in traffic.buckets],
        series=[
            Series(name="paid", values=paid, colour="ink"),
            Series(name="by the strongest tier alone", values=strongest, colour="quiet", dashes=DASHES[2]),
        ],
        format="usd",
    )


def verdicts_chart(traffic: Traffic) -> Timeline:
    """Return the chart of the verdicts of judges, and of those that say worse."""
    buckets = traffic.buckets
    return Timeline(
        title="Verdicts of judges",
        times=[bucket.at for bucket in buckets],
        series=[
            Series(name="all", values=[bucket.verified for bucket in buckets], colour="ink"),
            Series(name="worse", values=[bucket.worse for bucket in buckets], colour="bad", dashes=DASHES[2]),
        ],
        format="count",
    )


def _by_tier(traffic: Traffic, names: Mapping[int, str]) -> list[Series]:
    return [
        Series(
            name=names.get(number, f"tier {number}"),
            values=_per(traffic, 60.0, [bucket.answered.get(number, 0) for bucket in traffic.buckets]),
            colour=number,
            dashes=DASHES.get(number, "none"),
        )
        for number in sorted({*names, *traffic.together.answered})
    ]


def _per(traffic: Traffic, seconds: float, values: Sequence[float]) -> list[float | None]:
    """Return sums of buckets as rates. The last bucket's is over the time that has passed of it, and None before its
    half: of its first seconds a request more or less would look like a burst or an outage."""
    *whole, last = values
    passed = traffic.until - traffic.buckets[-1].at
    rates: list[float | None] = [value / traffic.seconds * seconds for value in whole]
    return [*rates, last / passed * seconds if passed >= traffic.seconds / 2 else None]
