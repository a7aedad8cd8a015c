"""`GET /v1/requests/{id}`: the record of a past request, with the decision and the inputs it can be replayed from."""

from typing import Any

from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.base.stores.database_reach import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.serving import serving_of
from gateway.tenancy.access.guard import caller_of
from quality.records.record import EmbeddingRecord, Record, Recorded


@get(
    "/requests/{request_id:str}", operation_class=describe(None, Record, EmbeddingRecord), summary="Show a past request"
)
async def show_record(request: HttpRequest, request_id: FromPath[str]) -> Response[Any]:
    """Found as soon as the record is durable; callers with a key see their own requests only.

    503 while the database is down and the journal no longer has the record.
    """
    return Response(await record_of_caller(request, request_id), media_type="application/json")


async def record_of_caller(request: HttpRequest, request_id: str) -> Recorded:
    """Return the caller's own request of this id. Raises `ApiError`: 404 without one, 503 while the database is
    down."""
    record = await reached(serving_of(request).records.find(request_id))
    key_id = caller_of(request).key_id
    if record is None or (key_id is not None and record.key_id != key_id):
        raise ApiError(
            404, f"No request {request_id[:128]!r} is recorded.", param="request_id", code="request_not_found"
        )
    return record
