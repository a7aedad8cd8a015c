"""`/admin/api/promotions/reset`: reset the labels that routing follows, and show their number."""

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.response import Response
from msgspec import Meta

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.running import operations_of
from gateway.operations.usecases.own_labels import LabelsShown, labels_shown, order_reset
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of


class ResetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, recorded with the author."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


@post(
    "/promotions/reset",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(ResetOrder, LabelsShown),
    summary="Forget the labels that routing follows",
)
async def reset_own_labels(request: HttpRequest) -> Response[Any]:
    """Labels until now no longer influence decisions, here at once and on other replicas soon, and train no version
    from now on. 409 without a classifier."""
    order = await read_body(request, ResetOrder)
    operations = operations_of(request)
    await order_reset(operations, actor_of(request), order.reason)
    return Response(labels_shown(operations), media_type="application/json")
