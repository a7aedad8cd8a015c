"""`/admin/api/artefacts/…`: promote a classifier version, roll back, and put one on trial."""

from typing import Any

from litestar import delete, post, put
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.usecases.versions import (
    TrialOrder,
    VersionOrder,
    VersionsNow,
    order_end_of_trial,
    order_promotion,
    order_rollback,
    order_trial,
)
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of


@post(
    "/artefacts/{version:str}/promote",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(VersionOrder, VersionsNow),
    summary="Promote a classifier version",
)
async def promote_version(request: HttpRequest, version: FromPath[str]) -> Response[Any]:
    """After the checks that a server makes; 409 with the reason of a refusal, and the serving version stays. It is
    watched, and rolled back on evidence of harm."""
    order = await read_body(request, VersionOrder)
    return _answer(await order_promotion(serving_of(request), actor_of(request), version, order.reason))


@post(
    "/artefacts/rollback",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(VersionOrder, VersionsNow),
    summary="Roll the classifier back",
)
async def roll_back(request: HttpRequest) -> Response[Any]:
    """Let the previous version serve again; 409 if there is none."""
    order = await read_body(request, VersionOrder)
    return _answer(await order_rollback(serving_of(request), actor_of(request), order.reason))


@put(
    "/trial",
    opt=OPERATOR,
    operation_class=describe(TrialOrder, VersionsNow),
    summary="Put a classifier version on trial",
)
async def begin_trial(request: HttpRequest) -> Response[Any]:
    """It decides a share of the requests, by a hash of their ids; 409 with the reason of a refusal. It ends on evidence
    of harm, but only an operator promotes it."""
    return _answer(await order_trial(serving_of(request), actor_of(request), await read_body(request, TrialOrder)))


@delete("/trial", opt=OPERATOR, status_code=200, operation_class=describe(None, VersionsNow), summary="End the trial")
async def end_trial(request: HttpRequest) -> Response[Any]:
    """Also ends the watch over a promoted version, which goes on serving. Nothing changes if neither is on."""
    return _answer(await order_end_of_trial(serving_of(request), actor_of(request), "ended by an operator"))


def _answer(now: VersionsNow) -> Response[Any]:
    return Response(now, media_type="application/json")
