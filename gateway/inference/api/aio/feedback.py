"""`POST /v1/feedback`: users' feedback on answers."""

from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from litestar import post
from litestar.response import Response
from msgspec import Meta

from gateway.base.errors import bad_request
from gateway.base.stores.database_reach import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.aio.records import record_of_caller
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.serving import serving_of
from gateway.tenancy.access.access import access_of
from gateway.tenancy.access.guard import caller_of
from quality.records.record import EmbeddingRecord
from quality.verification.feedback import Feedback, FeedbackTaken

_RATINGS = {"up": 1.0, "down": 0.0}


class FeedbackGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Feedback on the answer with this id: a rating, a score from 0 to 1, or the correct answer."""

    request_id: Annotated[str, Meta(min_length=1, max_length=128)]
    rating: Literal["up", "down"] | None = None
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
    correction: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None
    comment: Annotated[str, Meta(max_length=8192)] | None = None


@post("/feedback", status_code=200, operation_class=describe(FeedbackGiven, FeedbackTaken), summary="Rate an answer")
async def give_feedback(request: HttpRequest) -> Response[Any]:
    """Stored at once, and counts in the decisions of its own key only; newer feedback on the same answer replaces
    older. Counts against the key's requests per minute.

    429 beyond that limit, 503 while the database is down.
    """
    feedback = await read_body(request, FeedbackGiven)
    if feedback.rating is not None and feedback.score is not None:
        raise bad_request("Give a rating or a score, not both.", "score")
    if feedback.rating is None and feedback.score is None and feedback.correction is None:
        raise bad_request("Give a rating (up or down), a score from 0 to 1, or a correction.", "rating")
    admission_control = access_of(request).tenancy.admission_control
    admission = await admission_control.enter_call(caller_of(request), f"feedback-{uuid4().hex}")
    try:
        counted = await _taken(request, feedback)
    finally:
        admission.settle(0.0, 0)
    return Response(counted, media_type="application/json", headers=admission.headers)


async def _taken(request: HttpRequest, given: FeedbackGiven) -> FeedbackTaken:
    record = await record_of_caller(request, given.request_id)
    if isinstance(record, EmbeddingRecord):
        raise bad_request("Only answers can be rated: this request was for embeddings.", "request_id", "not_an_answer")
    score = given.score if given.rating is None else _RATINGS[given.rating]
    feedback = Feedback(score=score, correction=given.correction, comment=given.comment)
    return await reached(serving_of(request).feedback.take(record, feedback))
