"""`/v1/batches`: many requests in one file, answered at low priority."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import whole_seconds
from gateway.base.stores.database import reached
from gateway.batches.api.files import LEAST_SECONDS, MOST_SECONDS, owner_of
from gateway.batches.api.line_answers import BatchEndpoint
from gateway.batches.batch import Batch, NewBatch, NotCancellableError, TooManyBatchesError
from gateway.batches.jobs import Jobs, jobs_of
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.build_request import CONSENT, PRIVATE
from gateway.inference.api.list_queries import is_id, not_found, owned_query
from gateway.inference.api.parsing import read_body
from gateway.tenancy.guard import caller_of
from tiers.dialects.chat_schemas import Metadata

MOST_LISTED = 100
_DEFAULT_LISTED = 20
_TRACEPARENT_LENGTH = 64


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the batch's output files expire, in seconds after their creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a batch."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=64)]
    endpoint: BatchEndpoint
    completion_window: Annotated[
        str,
        Meta(
            pattern="^([1-9][0-9]?|1[0-5][0-9]|16[0-8])h(?!\\n)$",
            extra_json_schema={"description": "hours, from 1h to 168h"},
        ),
    ]
    """Hours, from 1h to 168h, after which unanswered lines expire."""
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines: all, answered, and those whose answer is an error. The others wait, or were never answered."""

    total: int
    completed: int
    failed: int


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the input, by line."""

    object: str = "list"
    data: list[dict[str, Any]]


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as OpenAI shows it; times are UTC epoch seconds."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches."""

    object: str = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    """The value of `after` for the next page."""
    has_more: bool


@post("/batches", status_code=200, operation_class=describe(BatchRequest, BatchObject), summary="Make a batch")
async def create_batch(request: HttpRequest) -> Response[Any]:
    """From an uploaded file of purpose `batch`, in which each line is a request; see docs/batches.md."""
    for header in (CONSENT, PRIVATE):
        if header in request.headers:
            # Its lines are answered later, as requests of their own: what they would not know must not look promised.
            raise bad_request(
                f"{header} is not taken with a batch: make it with a key whose terms say so (local_only, consent).",
                header,
                "unsupported_parameter",
            )
    body = await read_body(request, BatchRequest)
    jobs = jobs_of(request)
    new = await _checked(request, jobs, body)
    try:
        batch = await reached(jobs.create(owner_of(caller_of(request)), new))
    except TooManyBatchesError as error:
        raise ApiError(
            429, f"Wait until a batch has ended, or cancel one: {error}.", code="batch_limit_exceeded",
            headers={"retry-after": "60"},
        ) from None  # fmt: skip
    return await _shown(jobs, batch)


@get("/batches", operation_class=describe(None, BatchList), summary="List batches")
async def list_batches(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: `after`, `limit` (1 to 100)."""
    query = owned_query(request, most=MOST_LISTED, default=_DEFAULT_LISTED)
    jobs = jobs_of(request)
    batches, more = await reached(jobs.book.page(caller_of(request).tenant, after=query.after, limit=query.limit))
    data = [await _object(jobs, batch) for batch in batches]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return Response(BatchList(data=data, first_id=first, last_id=last, has_more=more), media_type="application/json")


@get("/batches/{batch_id:str}", operation_class=describe(None, BatchObject), summary="Show a batch")
async def show_batch(request: HttpRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Its progress; another tenant's batch is not found."""
    jobs = jobs_of(request)
    batch = await reached(jobs.book.find(caller_of(request).tenant, batch_id)) if is_id(batch_id) else None
    if batch is None:
        raise not_found("batch", batch_id)
    return await _shown(jobs, batch)


@post(
    "/batches/{batch_id:str}/cancel",
    status_code=200,
    operation_class=describe(None, BatchObject),
    summary="Cancel a batch",
)
async def cancel_batch(request: HttpRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Running lines end within a step; existing answers are in the output files."""
    jobs = jobs_of(request)
    try:
        batch = await reached(jobs.cancel(caller_of(request).tenant, batch_id)) if is_id(batch_id) else None
    except NotCancellableError as error:
        raise ApiError(409, f"Too late to cancel: {error}.", param="batch_id", code="batch_not_cancellable") from None
    if batch is None:
        raise not_found("batch", batch_id)
    return await _shown(jobs, batch)


async def _checked(request: HttpRequest, jobs: Jobs, body: BatchRequest) -> NewBatch:
    tenant, file_id = caller_of(request).tenant, body.input_file_id
    file = await reached(jobs.files.find(tenant, file_id)) if is_id(file_id) else None
    if file is None:
        raise ApiError(404, f"No such file: {file_id[:64]!r}.", param="input_file_id", code="file_not_found")
    if file.purpose != "batch":
        raise bad_request(
            f"The file's purpose is {file.purpose}; upload it with purpose batch.", "input_file_id", "invalid_purpose"
        )
    traceparent = request.headers.get("traceparent", "")
    return NewBatch(
        endpoint=body.endpoint,
        input_file_id=file_id,
        completion_window=body.completion_window,
        seconds=float(body.completion_window.partition("h")[0]) * 3600,
        metadata=body.metadata,
        traceparent=traceparent if 0 < len(traceparent) <= _TRACEPARENT_LENGTH else None,
        output_seconds=None if body.output_expires_after is None else float(body.output_expires_after.seconds),
    )


async def _shown(jobs: Jobs, batch: Batch) -> Response[Any]:
    return Response(await _object(jobs, batch), media_type="application/json")


async def _object(jobs: Jobs, batch: Batch) -> BatchObject:
    counts = await reached(jobs.book.counts(batch))
    fields = {name: getattr(batch, name) for name in BatchObject.__struct_fields__ if hasattr(batch, name)}
    times = {name: whole_seconds(time) for name, time in fields.items() if name.endswith("_at")}
    own = {
        "id": batch.batch_id,
        "errors": None if batch.errors is None else BatchErrors(data=batch.errors),
        "request_counts": RequestCounts(total=counts.total, completed=counts.completed, failed=counts.failed),
    }
    return BatchObject(**fields | times | own)
