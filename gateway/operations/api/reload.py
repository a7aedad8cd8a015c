"""`POST /v1/admin/reload`: reload the catalogue without a restart."""

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import ApiError
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.reload.catalogue_reload import Reloaded
from gateway.operations.running import operations_of
from gateway.tenancy.access.admin_guard import actor_of
from tiers.errors import CatalogError, CoreMemoryError


class ReloadOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


@post("/reload", status_code=200, operation_class=describe(ReloadOrder, Reloaded), summary="Reload the catalogue")
async def reload_catalogue(request: HttpRequest) -> Response[Any]:
    """The catalogue is validated first; a rejected one changes nothing, and the reason is returned. Running answers
    keep their tier. Changed models of the CPU core are loaded before the answer. The same as SIGHUP."""
    order = await read_body(request, ReloadOrder)
    operations = operations_of(request)
    try:
        done = await operations.reload.reload(actor_of(request), order.reason)
    except CoreMemoryError as error:
        raise ApiError(409, str(error), code="insufficient_memory") from error
    except CatalogError as error:
        raise ApiError(409, str(error), code="catalogue_refused") from error
    if operations.peers is not None:
        # What this process accepted, the others accept in a moment.
        await operations.peers.ask("reload")
    return Response(done, media_type="application/json")
