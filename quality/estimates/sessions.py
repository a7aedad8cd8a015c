"""Sessions of agents as they were stored: what each cost, how often it moved, and what one tier would have cost."""

from typing import Any

import msgspec
from sqlalchemy import case, desc, func, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import session_steps

NEWEST_STEPS = 5000
"""The list is of the sessions among so many of the newest steps, which an index finds."""
MOST_SESSIONS, MOST_STEPS = 100, 1000


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session. `client`: "" where tools were used by none that is known. `moves`: steps that another tier answered
    than the one before. `strongest_usd`: what it would have cost on the strongest tier alone, with its caches.
    `bad_ends` and `good_ends`: of its work, at users' turns. Times in epoch seconds."""

    session: str
    client: str
    key_id: str | None
    began_at: float
    last_at: float
    steps: int
    moves: int
    lowest_tier: int
    highest_tier: int
    bad_ends: int
    good_ends: int
    prompt_tokens: int
    cached_tokens: int
    cost_usd: float
    strongest_usd: float


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
    """Return the sessions with the newest steps, newest first. A single request with tools is none, unless an agent's
    client sent it."""
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
