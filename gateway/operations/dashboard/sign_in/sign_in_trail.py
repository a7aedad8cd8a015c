"""Sign-ins in the audit trail: who signed in and out, failed attempts, and their addresses; no secret, no unknown
name."""

import logging
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.sign_in.login_limit import LoginLimits, OwnLoginLimits, SharedLoginLimits, Subject
from gateway.operations.running import operations_of
from gateway.tenancy.access.guard import client_of
from gateway.tenancy.changes import Order, write_down
from migrations.tables.tenancy import dashboard_users
from quality.store.database import writing_first

log = logging.getLogger(__name__)

Action = Literal["session.begun", "session.ended", "session.refused", "session.limited"]
Means = Literal["password", "key", "oidc"]
ANONYMOUS, UNKNOWN = "nobody", "unknown"
LIMITS = "login_limits"
_ALL: Subject = ("record", "all")


def limits_of(request: HttpRequest) -> LoginLimits:
    """Return the limits of all processes that share a Redis; without it, those of this process."""
    limits: LoginLimits | None = request.app.state.get(LIMITS)
    if limits is None:
        redis = operations_of(request).redis
        limits = request.app.state[LIMITS] = OwnLoginLimits() if redis is None else SharedLoginLimits(redis)
    return limits


async def note(request: HttpRequest, action: Action, actor: str, **details: str) -> None:
    """Record an action of a signed-in user. While the database is down, it is logged instead and nothing waits."""
    await _written(request, action, actor, actor, details)


async def note_failure(request: HttpRequest, action: Action, name: str, means: Means, why: str = "") -> None:
    """Log and record a failed attempt, unless so many were recorded that others would fill the log and the database. A
    `name` of no user is not kept: it may be a password in the wrong field."""
    recorded = await limits_of(request).begin(_ALL)
    if recorded.wait_seconds:
        if recorded.is_news:
            log.warning("so many sign-ins to the dashboard failed that for some minutes no more are recorded")
        return
    log.warning("a sign-in to the dashboard failed, by %s%s", means, f": {why}" if why else "")
    await _written(request, action, ANONYMOUS, name or means, {"by": means}, is_name=means == "password")


async def _written(
    request: HttpRequest, action: Action, actor: str, subject: str, details: dict[str, str], *, is_name: bool = False
) -> None:
    operations = operations_of(request)
    order = Order(actor=actor, now=operations.access.tenancy.clock.now())
    try:
        database = writing_first(operations.serving.database)
        async with database.begin() as connection:
            shown = subject if not is_name or await _is_user(connection, subject) else UNKNOWN
            await write_down(connection, order, action, shown, details | {"from": client_of(request).address})
    except (SQLAlchemyError, OSError) as error:
        log.warning("%s by %s was not recorded: %s", action, actor, type(error).__name__)


async def _is_user(connection: AsyncConnection, name: str) -> bool:
    query = select(dashboard_users.c.name).where(dashboard_users.c.name == name)
    return await connection.scalar(query) is not None
