"""The requests page: requests by tier, status, model, key, time or id; and the path of each request."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import epoch_seconds, is_number, number
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.dashboard.html.first_request import first_request
from gateway.operations.dashboard.html.page import Page
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.dashboard.html.request_path import chances_of, rerouted, stages_of, verifications_of
from gateway.operations.usecases.keys import names_of
from gateway.operations.usecases.pages import page_asked_for
from quality.records.record import EmbeddingRecord, Record, Recorded
from quality.records.rows import request_row
from quality.store.pages import REFUSED, REQUESTS
from quality.verification.sampling import why_not_sampled

ROWS = 50
_OF_ANSWERS = ("status", "tier", "requested_model")


class RequestShown(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and its verifications."""

    request: Record
    verifications: list[dict[str, Any]]


class EmbeddingShown(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an embeddings request, which has no verifications."""

    request: EmbeddingRecord
    verifications: list[dict[str, Any]] = []


@get("/requests")
async def show_requests(request: HttpRequest) -> Response[Any]:
    """A page of the list. Query: as for `/admin/api/requests`, with times as the form writes them (UTC); `request_id`
    redirects to that request; `status=refused` lists refused requests instead, for which `tier` and `requested_model`
    mean nothing."""
    query = {name: value.strip() for name, value in request.query_params.items() if value.strip()}
    if (wanted := query.pop("request_id", None)) is not None:
        return back_to(f"/admin/requests/{wanted}")
    asked = query | {name: str(epoch_of(name, query[name])) for name in ("since", "until") if name in query}
    refused = asked.get("status") == "refused"
    if refused:
        asked = {name: value for name, value in asked.items() if name not in _OF_ANSWERS}
    found = await page_asked_for(request, REFUSED if refused else REQUESTS, {"limit": str(ROWS)} | asked)
    return page(
        request,
        "requests.html",
        "Requests",
        found=found,
        asked=asked,
        refused=refused,
        names=await names_of(serving_of(request).database, (row["key_id"] for row in found.rows)),
        filtered=bool(query.keys() - {"cursor", "limit"}),
        tiers=sorted(serving_of(request).routing.served.tiers),
        curl=first_request(request),
    )


@get("/requests/{request_id:str}")
async def show_request(request: HttpRequest, request_id: FromPath[str]) -> Response[Any]:
    """The path of one request. Query: `quality`, a target in [0, 1] to repeat the decision for."""
    record = await _record(request, request_id)
    serving = serving_of(request)
    names = await names_of(serving.database, [record.key_id])
    if isinstance(record, EmbeddingRecord):
        return page(request, "embedding.html", "Request", record=record, names=names)
    wanted = _target(request.query_params.get("quality", "").strip())
    return page(
        request,
        "request.html",
        "Request",
        record=record,
        names=names,
        inputs=record.decision.inputs,
        stages=stages_of(record),
        chances=chances_of(record.decision),
        estimated={spec.number: spec.price.estimated for spec in serving.routing.served.catalog.tiers},
        verified=await reached(verifications_of(serving.database, record.request_id)),
        why_not=why_not_sampled(record),
        wanted=wanted,
        otherwise=None if wanted is None else rerouted(serving.routing, record, wanted),
    )


@get(
    "/requests/{request_id:str}", operation_class=describe(None, RequestShown, EmbeddingShown), summary="Show a request"
)
async def request_figures(request: HttpRequest, request_id: FromPath[str]) -> Response[Any]:
    """The record with its decision and verifications, of any caller. Query: `format`, json or csv: its row."""
    record = await _record(request, request_id)
    row = msgspec.to_builtins(request_row(record))
    if isinstance(record, EmbeddingRecord):
        return as_asked(request, "request", EmbeddingShown(request=record), list(row), [row])
    verified = await reached(verifications_of(serving_of(request).database, record.request_id))
    return as_asked(request, "request", RequestShown(request=record, verifications=verified), list(row), [row])


async def _record(request: HttpRequest, request_id: str) -> Recorded:
    record = await reached(serving_of(request).records.find(request_id))
    if record is None:
        raise ApiError(404, f"No request {request_id[:128]!r} is recorded.", code="request_not_found")
    return record


def _target(given: str) -> float | None:
    return number(given, "quality", 0, 1) if given else None


def epoch_of(name: str, text: str) -> float:
    """Return the epoch seconds of a form's time field, read as UTC; a number is taken as it is. Raises `ApiError`
    400."""
    if not is_number(text):
        try:
            text = str(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
        except (ValueError, OverflowError):
            raise bad_request(f"Invalid {name}: {text[:64]!r} is not a time.", name, "invalid_value") from None
    return epoch_seconds(text, name)


REQUESTS_PAGE = Page(title="Requests", path="/requests", handlers=(show_requests, show_request))
