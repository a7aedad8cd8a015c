"""Stage latencies of answers, from the timings that the ledger stores of every request, with their budget."""

import msgspec
import numpy as np
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests

NEWEST = 10_000
# The sources' budget of an answer of so many tokens, by stage, in milliseconds (SPEC GW-02).
TOKENS = 100
BUDGET_MS = {"route": 2.0, "schedule": 3.0, "prefill": 25.0, "decode": 65.0, "stream": 5.0}


class AnswerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds: medians over `answers`, and the 95th percentile from arrival to the last byte.

    `token_ms`: per billed token after the first; with several samples at once all of them are billed. `stream_ms`: time
    outside the tier, without routing.
    """

    answers: int
    route_ms: float
    queue_ms: float
    prefill_ms: float
    token_ms: float
    stream_ms: float
    e2e_p95_ms: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, in milliseconds; `source`: where the figure is from."""

    name: str
    budget_ms: float
    measured_ms: float
    source: str


async def answer_timings(
    engine: AsyncEngine, since: float, until: float, tier: int | None = None
) -> AnswerTimings | None:
    """Return the timings of the newest `NEWEST` answers of a period (epoch seconds) by `tier`, or by any tier; None
    without such answers. Only answers made for their own request, with more than one token, count."""
    used = requests.c
    query = (
        select(
            used.route_ms,
            used.queue_ms,
            used.prefill_ms,
            used.decode_ms / (used.completion_tokens - 1),
            used.overhead_ms - used.route_ms,
            used.e2e_ms,
        )
        .where(
            used.created_at >= since,
            used.created_at < until,
            used.status == "ok",
            used.completion_tokens > 1,
            used.decode_ms.is_not(None),
            or_(used.cache.is_(None), used.cache == "miss"),
            *([] if tier is None else [used.tier == tier]),
        )
        .order_by(used.created_at.desc())
        .limit(NEWEST)
    )
    async with engine.connect() as connection:
        rows = [tuple(row) for row in await connection.execute(query)]
    if not rows:
        return None
    route, queue, prefill, token, stream, _ = np.median(rows, axis=0).tolist()
    return AnswerTimings(
        answers=len(rows),
        route_ms=route,
        queue_ms=queue,
        prefill_ms=prefill,
        token_ms=token,
        stream_ms=stream,
        e2e_p95_ms=float(np.quantile([row[-1] for row in rows], 0.95)),
    )


def recorded_stages(timings: AnswerTimings) -> list[StageTime]:
    """Return all five stages of an answer of `TOKENS` tokens."""
    gaps = TOKENS - 1
    stages = {
        "route": (timings.route_ms, "route_ms, p50"),
        "schedule": (timings.queue_ms, "queue_ms, p50: waiting, and planning the prompt's steps"),
        "prefill": (timings.prefill_ms, "prefill_ms, p50, of the recorded prompts"),
        "decode": (gaps * timings.token_ms, f"{gaps} times {timings.token_ms:.2f} ms a token (decode_ms, p50)"),
        "stream": (timings.stream_ms, "overhead_ms minus route_ms, p50"),
    }
    return [
        StageTime(name=name, budget_ms=budget, measured_ms=stages[name][0], source=stages[name][1])
        for name, budget in BUDGET_MS.items()
    ]
