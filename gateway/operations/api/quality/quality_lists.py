"""`/admin/api`: served requests; what the quality loop verified, estimated and decided; and "retrain now"."""

from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.estimate_rows import EstimateRow, estimate_rows
from gateway.operations.usecases.estimates import estimates_shown, order_retraining
from gateway.operations.usecases.pages import page_of
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.monitor.status import MonitorStatus
from quality.store.database import MOST_INTEGER
from quality.store.pages import (
    ARTEFACTS,
    BATCHES,
    EXPERIMENTS,
    REFUSED,
    REQUESTS,
    RETRAININGS,
    ROLLOUTS,
    TRANSITIONS,
    VERIFICATIONS,
    Page,
)


class RetrainOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


class RetrainStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`started` is false if a retraining was running in this process."""

    started: bool


class VerificationShown(msgspec.Struct, frozen=True, kw_only=True):
    """All columns of the row."""

    verification: dict[str, Any]


@get("/requests", operation_class=describe(None, Page), summary="List requests")
async def list_requests(request: HttpRequest) -> Response[Any]:
    """Newest first, without texts; `/admin/api/requests/{request_id}` has the whole record. Query: `tier`, `status`,
    `requested_model`, `key_id`, and as for verifications."""
    return await page_of(request, REQUESTS)


@get("/refused-requests", operation_class=describe(None, Page), summary="List refused requests")
async def list_refused(request: HttpRequest) -> Response[Any]:
    """Requests that were refused before there was an answer, counted by minute, key, status, code, limit and endpoint,
    newest first. Query: `key_id`, `code`, and as for verifications."""
    return await page_of(request, REFUSED)


@get("/batches", operation_class=describe(None, Page), summary="List the batches of all callers")
async def list_all_batches(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: `status`, `key_id`, and as for verifications."""
    return await page_of(request, BATCHES)


@get("/verifications", operation_class=describe(None, Page), summary="List verifications")
async def list_verifications(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: `tier`, `status`, `label`, `judge`, `sampled_reason`, `key_id`; `since` and `until` in epoch
    seconds; `limit`; `cursor`, the `next` of the previous page; `format`: json, or csv for a file with up to 100,000
    rows (10,000 unless `limit` says)."""
    return await page_of(request, VERIFICATIONS)


@get("/verifications/{number:int}", operation_class=describe(None, VerificationShown), summary="Show a verification")
async def show_verification(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """All columns, including the verifier's answer. Query: `format`, json or csv."""
    possible = 1 <= number <= MOST_INTEGER
    row = await reached(VERIFICATIONS.one(serving_of(request).database, number)) if possible else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    return as_asked(request, "verification", VerificationShown(verification=row), list(row), [row])


@get("/artefacts", operation_class=describe(None, Page), summary="List classifier versions")
async def list_artefacts(request: HttpRequest) -> Response[Any]:
    """Newest first, with the outcome of each and its reason. Query: `status`, and as for verifications."""
    return await page_of(request, ARTEFACTS)


@get("/transitions", operation_class=describe(None, Page), summary="List audit events")
async def list_transitions(request: HttpRequest) -> Response[Any]:
    """Promotions, refusals, alarms and others, newest first. Query: `action`, `actor`, and as for verifications."""
    return await page_of(request, TRANSITIONS)


@get("/retrainings", operation_class=describe(None, Page), summary="List retraining runs")
async def list_retrainings(request: HttpRequest) -> Response[Any]:
    """Newest first, with progress, candidate and evaluation. Query: `status`, `trigger`, and as for verifications."""
    return await page_of(request, RETRAININGS)


@get("/rollouts", operation_class=describe(None, Page), summary="List rollouts")
async def list_rollouts(request: HttpRequest) -> Response[Any]:
    """Newest first: versions on trial or watched, with the evidence of the last look, and how each ended. Query:
    `status`, and as for verifications."""
    return await page_of(request, ROLLOUTS)


@get("/experiments", operation_class=describe(None, Page), summary="List experiments")
async def list_experiments(request: HttpRequest) -> Response[Any]:
    """Newest first, with the outcome of each arm's requests, the evidence, and how each ended. Query: `status`, and as
    for verifications."""
    return await page_of(request, EXPERIMENTS)


@get("/estimates", operation_class=describe(None, MonitorStatus), summary="Show the estimates of quality")
async def show_estimates(request: HttpRequest) -> Response[Any]:
    """By tier with intervals; evidence that errors have become more frequent, the cost of verification, and how far the
    judges can be trusted. Query: `format`, json or csv."""
    shown = await estimates_shown(operations_of(request))
    return as_asked(request, "estimates", shown, EstimateRow.__struct_fields__, estimate_rows(shown))


@post(
    "/retrainings",
    status_code=202,
    opt=OPERATOR,
    operation_class=describe(RetrainOrder, RetrainStarted),
    summary="Retrain now",
)
async def retrain_now(request: HttpRequest) -> Response[Any]:
    """Starts in the background; the list of runs shows its progress. One run at a time over all replicas."""
    order = await read_body(request, RetrainOrder)
    started = await order_retraining(operations_of(request), actor_of(request), order.reason)
    return Response(RetrainStarted(started=started), status_code=202, media_type="application/json")
