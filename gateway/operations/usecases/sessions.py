"""Agents' sessions for people: the newest ones, and one with all of its steps."""

from collections.abc import Mapping

import msgspec

from gateway.base.errors import ApiError
from gateway.base.numbers import whole_number
from gateway.base.stores.database import reached
from gateway.inference.service import Serving
from quality.estimates.sessions import MOST_SESSIONS, SessionRow, StepRow, newest_sessions, steps_of


class SessionsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions with the newest steps, newest first."""

    sessions: list[SessionRow]


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """One session's steps, oldest first, and their sums in US dollars. `strongest_usd`: on the strongest tier alone,
    with its caches."""

    session: str
    cost_usd: float
    strongest_usd: float
    steps: list[StepRow]


async def sessions_shown(serving: Serving, query: Mapping[str, str]) -> SessionsShown:
    """Return what `query` asks for with `limit`. Raises `ApiError` 400 and 503."""
    limit = whole_number(query.get("limit", "50"), "limit", 1, MOST_SESSIONS)
    return SessionsShown(sessions=await reached(newest_sessions(serving.database, limit)))


async def session_shown(serving: Serving, session: str) -> SessionShown:
    """Return one session. Raises `ApiError` 404 and 503."""
    # PostgreSQL can compare with no text that has NUL, and no digest has it.
    steps = [] if "\0" in session else await reached(steps_of(serving.database, session))
    if not steps:
        raise ApiError(404, f"No session {session[:64]!r} is stored.", code="session_not_found")
    cost, strongest = sum(step.cost_usd for step in steps), sum(step.strongest_usd for step in steps)
    return SessionShown(session=session, cost_usd=cost, strongest_usd=strongest, steps=steps)
