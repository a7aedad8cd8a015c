"""`/admin/api`: what was served; what the quality loop has seen, estimated and decided; and "retrain now"."""

from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from gateway.api.generating import read_body
from gateway.api.guard import actor_of
from gateway.api.operations import describe
from gateway.database_reach import reached
from gateway.errors import ApiError, bad_request
from gateway.parts import HttpRequest, parts_of
from quality.database import MOST_INTEGER
from quality.listings import ARTEFACTS, EXPERIMENTS, REQUESTS, RETRAININGS, ROLLOUTS, TRANSITIONS, VERIFICATIONS
from quality.monitor import MonitorStatus
from quality.pages import Listing, Page, PageError

_BOUNDS: dict[str, type[float] | type[int] | type[str]] = {"since": float, "until": float, "cursor": str, "limit": int}


class RetrainOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why somebody wants it now; written down."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


class RetrainStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`started` is false where one was under way in this process already."""

    started: bool


class VerificationShown(msgspec.Struct, frozen=True, kw_only=True):
    """All columns of the row."""

    verification: dict[str, Any]


_decoder = msgspec.json.Decoder(RetrainOrder)


@get("/requests", operation_class=describe(None, Page), summary="List requests")
async def list_requests(request: HttpRequest) -> Response[Any]:
    """Newest first, without texts; `/v1/requests/{request_id}` has the whole record. Query: `tier`, `key_id`, and as
    for verifications."""
    return await page_of(request, REQUESTS)


@get("/verifications", operation_class=describe(None, Page), summary="List verifications")
async def list_verifications(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: `tier`, `status`, `label`, `judge`, `sampled_reason`, `key_id`; `since` and `until` in epoch
    seconds; `limit`; `cursor`, the `next` of the page before."""
    return await page_of(request, VERIFICATIONS)


@get("/verifications/{number:int}", operation_class=describe(None, VerificationShown), summary="Show a verification")
async def show_verification(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """The whole of it, the verifier's answer included."""
    possible = 1 <= number <= MOST_INTEGER
    row = await reached(VERIFICATIONS.one(parts_of(request).database, number)) if possible else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    return Response(VerificationShown(verification=row), media_type="application/json")


@get("/artefacts", operation_class=describe(None, Page), summary="List classifier versions")
async def list_artefacts(request: HttpRequest) -> Response[Any]:
    """Newest first, with what became of each and why. Query: `status`, and as for verifications."""
    return await page_of(request, ARTEFACTS)


@get("/transitions", operation_class=describe(None, Page), summary="List audit events")
async def list_transitions(request: HttpRequest) -> Response[Any]:
    """Promotions, refusals, alarms and others, newest first. Query: `action`, `actor`, and as for verifications."""
    return await page_of(request, TRANSITIONS)


@get("/retrainings", operation_class=describe(None, Page), summary="List retraining runs")
async def list_retrainings(request: HttpRequest) -> Response[Any]:
    """Newest first, with progress, candidate and judgement. Query: `status`, `trigger`, and as for verifications."""
    return await page_of(request, RETRAININGS)


@get("/rollouts", operation_class=describe(None, Page), summary="List rollouts")
async def list_rollouts(request: HttpRequest) -> Response[Any]:
    """Newest first: versions on trial or watched, with the evidence of the last look, and how each ended. Query:
    `status`, and as for verifications."""
    return await page_of(request, ROLLOUTS)


@get("/experiments", operation_class=describe(None, Page), summary="List experiments")
async def list_experiments(request: HttpRequest) -> Response[Any]:
    """Newest first, with what became of each arm's requests, the evidence, and how each ended. Query: `status`, and as
    for verifications."""
    return await page_of(request, EXPERIMENTS)


@get("/estimates", operation_class=describe(None, MonitorStatus), summary="Show the estimates of quality")
async def show_estimates(request: HttpRequest) -> Response[Any]:
    """By tier with intervals, the evidence that errors have become more frequent, what verification costs, and how far
    the judges can be trusted."""
    loop = parts_of(request).quality_loop
    if loop is None or loop.monitor is None:
        raise ApiError(409, "The quality monitor does not run in this server.", code="monitor_off")
    return Response(await reached(loop.monitor.status()), media_type="application/json")


@post("/retrainings", status_code=202, operation_class=describe(RetrainOrder, RetrainStarted), summary="Retrain now")
async def retrain_now(request: HttpRequest) -> Response[Any]:
    """Begin in the background; the list of runs says how it goes. One run at a time over all replicas."""
    order = await read_body(request, _decoder)
    loop = parts_of(request).quality_loop
    if loop is None:
        raise ApiError(409, "The quality monitor does not run in this server.", code="monitor_off")
    actor = actor_of(request)
    started = await reached(loop.retrain_now(actor, order.reason))
    return Response(RetrainStarted(started=started), status_code=202, media_type="application/json")


async def page_of(request: HttpRequest, listing: Listing) -> Response[Any]:
    """The page that the query asks for. Raises `ApiError` 400 and 503."""
    return Response(await page_asked_for(request, listing), media_type="application/json")


async def page_asked_for(request: HttpRequest, listing: Listing) -> Page:
    """As `page_of`, before it is written."""
    given = dict(request.query_params)
    chosen = {name: _value(name, given.pop(name), listing.kind(name)) for name in listing.filters if name in given}
    bounds = {name: _value(name, given.pop(name), kind) for name, kind in _BOUNDS.items() if name in given}
    if given:
        allowed = ", ".join((*listing.filters, *_BOUNDS))
        raise bad_request(f"Unknown query parameter; allowed: {allowed}.", next(iter(given)))
    try:
        return await reached(listing.page(parts_of(request).database, chosen, **bounds))
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error


def _value(name: str, given: str, kind: type[Any]) -> Any:
    try:
        value = kind(given)
        # Neither database compares with what it cannot hold.
        if (isinstance(value, int) and abs(value) > MOST_INTEGER) or "\0" in given or value != value:
            raise ValueError
        return value
    except ValueError:
        raise bad_request(f"Invalid {name}: {given[:64]!r} is no {kind.__name__}.", name, "invalid_value") from None
