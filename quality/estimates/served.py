"""What the ledger shows of served requests: the latencies of the stages of their answers with their budget, and agents'
sessions: what each cost, how often it moved, and what one tier would have cost."""

from typing import Any

import msgspec
import numpy as np
from sqlalchemy import case, desc, func, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests, session_steps

NEWEST = 10_000
# The sources' budget of an answer of so many tokens, by stage, in milliseconds (SPEC GW-02).
TOKENS = 100
BUDGET_MS = {"route": 2.0, "schedule": 3.0, "prefill": 25.0, "decode": 65.0, "stream": 5.0}


class AnswerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds: medians over `answers`, and the 95th percentile from arrival to the last byte."""

    answers: int
    route_ms: float
    queue_ms: float
    prefill_ms: float
    token_ms: float
    """Time per billed token after the first; with several samples at once all of them are billed."""
    stream_ms: float
    """Time outside the tier, without routing."""
    e2e_p95_ms: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, in milliseconds."""

    name: str
    budget_ms: float
    measured_ms: float
    source: str
    """Where the figure is from."""


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


NEWEST_STEPS = 5000
"""The list is of the sessions among so many of the newest steps, which an index finds."""
MOST_SESSIONS, MOST_STEPS = 100, 1000


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session. Times are epoch seconds."""

    session: str
    client: str
    """"" where tools were used by no known client."""
    key_id: str | None
    began_at: float
    last_at: float
    steps: int
    moves: int
    """Steps that another tier answered than the one before."""
    lowest_tier: int
    highest_tier: int
    bad_ends: int
    """Bad ends of its work, at users' turns."""
    good_ends: int
    """Good ends of its work, at users' turns."""
    prompt_tokens: int
    cached_tokens: int
    cost_usd: float
    strongest_usd: float
    """What it would have cost on the strongest tier alone, with its caches."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a session: the columns of `session_steps`."""

    request_id: str
    created_at: float
    purpose: str
    step: int
    loop_step: int
    at: str
    tier: int
    previous: int | None
    rule: str
    reason: str
    gap_seconds: float | None
    errors: int
    repeats: int
    bad_calls: int
    last_exit: str | None
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    completion_tokens: int
    cost_usd: float
    strongest_usd: float
    ended: str | None
    end_sign: str | None
    end_weight: float | None
    trouble: dict[str, Any] | None


async def newest_sessions(engine: AsyncEngine, limit: int) -> list[SessionRow]:
    """Return the sessions with the newest steps, newest first. One request with tools is one only from an agent."""
    s = session_steps.c
    steps = select(s.session, s.created_at, s.client, s.step)
    newest = steps.order_by(desc(s.created_at)).limit(NEWEST_STEPS).subquery()
    goes_on, last = or_(newest.c.step > 1, newest.c.client != ""), func.max(newest.c.created_at)
    wanted = select(newest.c.session).where(goes_on).group_by(newest.c.session).order_by(desc(last)).limit(limit)
    figures = (
        select(
            s.session,
            func.max(s.client).label("client"),
            func.max(s.key_id).label("key_id"),
            func.min(s.created_at).label("began_at"),
            func.max(s.created_at).label("last_at"),
            func.count().label("steps"),
            func.sum(case((s.previous != s.tier, 1), else_=0)).label("moves"),
            func.min(s.tier).label("lowest_tier"),
            func.max(s.tier).label("highest_tier"),
            func.sum(case((s.ended == "bad", 1), else_=0)).label("bad_ends"),
            func.sum(case((s.ended == "good", 1), else_=0)).label("good_ends"),
            func.sum(s.prompt_tokens).label("prompt_tokens"),
            func.sum(s.cached_tokens).label("cached_tokens"),
            func.sum(s.cost_usd).label("cost_usd"),
            func.sum(s.strongest_usd).label("strongest_usd"),
        )
        .where(s.session.in_(wanted))
        .group_by(s.session)
        .order_by(desc("last_at"))
    )
    async with engine.connect() as connection:
        return [SessionRow(**row._asdict()) for row in await connection.execute(figures)]


async def steps_of(engine: AsyncEngine, session: str) -> list[StepRow]:
    """Return the newest steps of a session, oldest first; empty if it is not known."""
    s = session_steps.c
    columns = [s[name] for name in StepRow.__struct_fields__]
    newest = select(*columns).where(s.session == session).order_by(desc(s.created_at)).limit(MOST_STEPS)
    async with engine.connect() as connection:
        return [StepRow(**row._asdict()) for row in await connection.execute(newest)][::-1]
