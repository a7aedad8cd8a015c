"""Keys and teams: the orders that make, change, rotate and revoke them, and their refusals."""

from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.tenancy.access.guard import Access
from gateway.tenancy.changes import TenancyError, UnknownSubjectError
from gateway.tenancy.keys.key_commands import GRACE_SECONDS, KeyTerms, Name
from migrations.tables.tenancy import api_keys, teams

T = TypeVar("T")
Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
MOST_GRACE_SECONDS = 90 * 24 * 3600.0


class KeyOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key: its name, its team (name or id), and its terms."""

    name: Name
    team: str | None = None
    terms: KeyTerms = KeyTerms()
    reason: Reason | None = None


class ChangeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New terms of a key; omitted fields of `terms` stay."""

    terms: KeyTerms
    reason: Reason | None = None


class RotateOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old secret stays valid besides the new one; a day by default, at most 90."""

    grace_seconds: Annotated[float, Meta(ge=0, le=MOST_GRACE_SECONDS)] = GRACE_SECONDS
    reason: Reason | None = None


class RevokeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Reason | None = None


class TeamOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new team."""

    name: Name
    reason: Reason | None = None


async def obeyed(access: Access, work: Awaitable[T]) -> T:
    """Return the result of the order, which applies in this process. Raises `ApiError`: 404, 400 for a time in the
    past, 409 for a conflict, 503 while the database is down."""
    try:
        done = await reached(work)
    except UnknownSubjectError as error:
        raise ApiError(404, f"{error}.", param=error.param, code="not_found") from error
    except TenancyError as error:
        if error.param == "expires_at":
            raise bad_request(f"{error}.", "terms.expires_at", "invalid_value") from error
        raise ApiError(409, f"{error}.", param=error.param, code="conflict") from error
    # It is carried out; if the database fails just now, polling will bring it.
    with suppress(SQLAlchemyError, OSError):
        await access.tenancy.directory.load()
    return done


async def names_of(engine: AsyncEngine, ids: Iterable[str | None]) -> dict[str, str]:
    """Return the names of the keys and teams with these ids; keys of the settings have no other id than their name.
    Raises `ApiError` 503."""
    wanted = {one for one in ids if one is not None}

    async def read() -> dict[str, str]:
        of_keys = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(wanted))
        of_teams = select(teams.c.team_id, teams.c.name).where(teams.c.team_id.in_(wanted))
        async with engine.connect() as connection:
            return {row.key_id: row.name for row in await connection.execute(of_keys.union_all(of_teams))}

    return await reached(read()) if wanted else {}
