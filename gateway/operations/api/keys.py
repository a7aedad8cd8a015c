"""`/admin/api/keys` and `/admin/api/teams`: keys are made, changed, rotated and revoked, with an audit trail."""

from typing import Any

import msgspec
from litestar import get, patch, post
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.usecases.keys import ChangeOrder, KeyOrder, RevokeOrder, RotateOrder, TeamOrder, obeyed
from gateway.operations.usecases.pages import page_of
from gateway.tenancy.access.admin_guard import order_of
from gateway.tenancy.access.guard import access_of
from gateway.tenancy.keys.key_commands import (
    KEYS,
    TEAMS,
    IssuedKey,
    change_key,
    create_key,
    create_team,
    revoke_key,
    rotate_key,
    shown_key,
)
from quality.store.pages import Page


class KeyChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, as name → [old, new]."""

    changed: dict[str, list[Any]]


class KeyRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """It is rejected here at once, by other processes within their polling interval."""

    key_id: str


class TeamMade(msgspec.Struct, frozen=True, kw_only=True):
    """The new team's id."""

    team_id: str


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a key without its hashes."""

    key: dict[str, Any]


@get("/keys", operation_class=describe(None, Page), summary="List keys")
async def list_keys(request: HttpRequest) -> Response[Any]:
    """Newest first, including ended ones. Query: `team_id`, and as for verifications."""
    return await page_of(request, KEYS)


@post("/keys", operation_class=describe(KeyOrder, IssuedKey), summary="Make a key")
async def make_key(request: HttpRequest) -> Response[Any]:
    """The answer contains the key, only this once. 409 if the name was used before."""
    order = await read_body(request, KeyOrder)
    serving = serving_of(request)
    work = create_key(serving.database, order.name, order.team, order.terms, order_of(request, order.reason))
    return _shown_once(await obeyed(access_of(request), work), 201)


@get("/keys/{key:str}", operation_class=describe(None, KeyShown), summary="Show a key")
async def show_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """By id or name, without its hashes. Query: `format`, json or csv."""
    row = await obeyed(access_of(request), shown_key(serving_of(request).database, key))
    return as_asked(request, "key", KeyShown(key=row), list(row), [row])


@patch("/keys/{key:str}", operation_class=describe(ChangeOrder, KeyChanged), summary="Change what a key may do")
async def limit_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """By id or name: scopes, tiers, models, rates, concurrency, consent, expiry; not the team."""
    order = await read_body(request, ChangeOrder)
    work = change_key(serving_of(request).database, key, order.terms, order_of(request, order.reason))
    return Response(KeyChanged(changed=await obeyed(access_of(request), work)), media_type="application/json")


@post(
    "/keys/{key:str}/rotate",
    status_code=200,
    operation_class=describe(RotateOrder, IssuedKey),
    summary="Give a key a new secret",
)
async def renew_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """By id or name. The answer contains the new secret, only this once; the old one is valid for the grace period."""
    order = await read_body(request, RotateOrder)
    work = rotate_key(serving_of(request).database, key, order.grace_seconds, order_of(request, order.reason))
    return _shown_once(await obeyed(access_of(request), work), 200)


@post(
    "/keys/{key:str}/revoke",
    status_code=200,
    operation_class=describe(RevokeOrder, KeyRevoked),
    summary="Revoke a key",
)
async def end_key(request: HttpRequest, key: FromPath[str]) -> Response[Any]:
    """By id or name; permanent."""
    order = await read_body(request, RevokeOrder)
    work = revoke_key(serving_of(request).database, key, order_of(request, order.reason))
    return Response(KeyRevoked(key_id=await obeyed(access_of(request), work)), media_type="application/json")


@get("/teams", operation_class=describe(None, Page), summary="List teams")
async def list_teams(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: as for verifications."""
    return await page_of(request, TEAMS)


@post("/teams", operation_class=describe(TeamOrder, TeamMade), summary="Make a team")
async def make_team(request: HttpRequest) -> Response[Any]:
    """Keys of a team share its budgets, caches and prefixes. 409 if the name is taken."""
    order = await read_body(request, TeamOrder)
    work = create_team(serving_of(request).database, order.name, order_of(request, order.reason))
    return Response(
        TeamMade(team_id=await obeyed(access_of(request), work)), status_code=201, media_type="application/json"
    )


def _shown_once(issued: IssuedKey, status: int) -> Response[Any]:
    return Response(issued, status_code=status, media_type="application/json", headers={"cache-control": "no-store"})
