"""`/admin/api/promotions/reset`: reset the labels that routing follows, and show their number."""

import time
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.response import Response
from msgspec import Meta

from gateway.api.access.admin_guard import OPERATOR, actor_of
from gateway.api.inference.parsing import read_body
from gateway.api.operations import describe
from gateway.composition.active_labels import ActiveLabels
from gateway.errors import ApiError
from gateway.protocols.http_request import HttpRequest
from gateway.running import operations_of
from gateway.serving import serving_of
from gateway.stores.database_reach import reached
from quality.store.label_reset import reset_labels


class LabelsShown(msgspec.Struct, frozen=True, kw_only=True):
    """`labels`: by serving version, how many of the catalogue's own labels count in its decisions."""

    labels: dict[str, int]


class ResetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, recorded with the author."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


_order = msgspec.json.Decoder(ResetOrder)


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
    await order_reset(request, (await read_body(request, _order)).reason)
    return Response(labels_shown(request), media_type="application/json")


async def order_reset(request: HttpRequest, reason: str) -> None:
    """Reset the labels until now. Raises `ApiError` 409 and 503."""
    active = _active(request)
    database, actor, now = serving_of(request).database, actor_of(request), time.time()
    await reached(reset_labels(database, actor=actor, reason=reason, now=now))
    await reached(active.catch_up(now))


def labels_shown(request: HttpRequest) -> LabelsShown:
    """Return those that count now. Raises `ApiError` 409 without a classifier."""
    return LabelsShown(labels=_active(request).counts)


def _active(request: HttpRequest) -> ActiveLabels:
    active = operations_of(request).active_labels
    if active is None:
        raise ApiError(409, "This server has no classifier of its own.", code="classifier_off")
    return active
