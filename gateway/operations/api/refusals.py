"""`/v1/admin/refusals`: the parameters that servers of tiers were found to refuse, which are left out of requests."""

from typing import Any

import msgspec
from litestar import delete, get
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.running import operations_of
from gateway.tenancy.access.admin_guard import OPERATOR
from tiers.remote.learned_refusals import REFUSALS, LearnedRefusal


class RefusalsShown(msgspec.Struct, frozen=True, kw_only=True):
    """What all gateway processes have learned; each remembers it for a day."""

    refusals: list[LearnedRefusal]


class RefusalsForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Of how many places (tier, address, API, model) something was forgotten."""

    forgotten: int


@get("/refusals", operation_class=describe(None, RefusalsShown), summary="Show the parameters that servers refuse")
async def show_refusals(request: HttpRequest) -> Response[Any]:
    """A parameter is here after a server refused it as such and answered the same request without it."""
    found = REFUSALS.listed()
    peers = operations_of(request).peers
    if peers is not None:
        for told in (await peers.ask("refusals")).values():
            found += msgspec.msgpack.decode(told, type=list[LearnedRefusal])
    latest = {(one.tier, one.url, one.api, one.model, *one.parameters): one for one in found}
    return Response(RefusalsShown(refusals=list(latest.values())), media_type="application/json")


@delete(
    "/refusals",
    status_code=200,
    opt=OPERATOR,
    operation_class=describe(None, RefusalsForgotten),
    summary="Forget the parameters that servers refuse",
)
async def forget_refusals(request: HttpRequest) -> Response[Any]:
    """Further requests have them again. `tier` in the query: of this tier alone."""
    tier = request.query_params.get("tier") or None
    forgotten = REFUSALS.forget(tier)
    peers = operations_of(request).peers
    if peers is not None:
        forgotten += sum(int(told) for told in (await peers.ask("forget", tier or "")).values())
    return Response(RefusalsForgotten(forgotten=forgotten), media_type="application/json")
