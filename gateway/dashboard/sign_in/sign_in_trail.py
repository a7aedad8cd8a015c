"""Sign-ins in the audit trail: who signed in and out, failed attempts, and their addresses; no secret, no unknown
name."""

import logging
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.parts import HttpRequest, parts_of
from gateway.tenancy.orders import Order, write_down
from migrations.tables import dashboard_users

log = logging.getLogger(__name__)

Action = Literal["session.begun", "session.ended", "session.refused", "session.limited"]
Means = Literal["password", "key", "oidc"]
ANONYMOUS, UNKNOWN = "nobody", "unknown"


async def note(request: HttpRequest, action: Action, actor: str, **details: str) -> None:
    """Record an action of a signed-in user. While the database is down, it is logged instead and nothing waits."""
    await _written(request, action, actor, actor, details)


async def note_failure(request: HttpRequest, action: Action, name: str, means: Means) -> None:
    """Record a failed attempt. A `name` of no user is not kept: it may be a password in the wrong field."""
    await _written(request, action, ANONYMOUS, name or means, {"by": means}, is_name=means == "password")


async def _written(
    request: HttpRequest, action: Action, actor: str, subject: str, details: dict[str, str], *, is_name: bool = False
) -> None:
    parts = parts_of(request)
    order = Order(actor=actor, now=parts.tenancy.clock.now())
    try:
        async with parts.database.begin() as connection:
            shown = subject if not is_name or await _is_user(connection, subject) else UNKNOWN
            await write_down(connection, order, action, shown, details | {"from": address_of(request)})
    except (SQLAlchemyError, OSError) as error:
        log.warning("%s by %s was not recorded: %s", action, actor, type(error).__name__)


def address_of(request: HttpRequest) -> str:
    """Return the client's address; empty if unknown."""
    return request.client.host if request.client else ""


async def _is_user(connection: AsyncConnection, name: str) -> bool:
    query = select(dashboard_users.c.name).where(dashboard_users.c.name == name)
    return await connection.scalar(query) is not None
