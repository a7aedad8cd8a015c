"""Endpoints of our own: `POST /v1/feedback`, users' feedback on answers; `GET /v1/requests/{id}`, the record of a past
request, with the decision and the inputs it can be replayed from; and `POST /v1/route`, the decision that a request
would get, without answering it."""

import time
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from classifier.decision import Decision
from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.build_request import received, routing_options, ruled_headers, unanswered_request
from gateway.inference.api.parsing import read_body
from gateway.inference.clients import recognised
from gateway.inference.conversations import session_digests
from gateway.inference.service import serving_of
from gateway.tenancy.guard import access_of, caller_of
from quality.estimates.session_work import last_step
from quality.records.record import EmbeddingRecord, Record, Recorded
from quality.verification.feedback import Feedback, FeedbackTaken
from tiers.conversation import Turn
from tiers.dialects.chat_request import turns_of
from tiers.dialects.chat_schemas import Message, Metadata, PositiveInt
from tiers.errors import ReplicaTry


@get(
    "/requests/{request_id:str}", operation_class=describe(None, Record, EmbeddingRecord), summary="Show a past request"
)
async def show_record(request: HttpRequest, request_id: FromPath[str]) -> Response[Any]:
    """Found as soon as the record is durable; callers with a key see their own requests only.

    503 while the database is down and the journal no longer has the record.
    """
    record = await record_of_caller(request, request_id)
    attempts = [msgspec.structs.replace(attempt, replicas=_unnamed(attempt.replicas)) for attempt in record.attempts]
    return Response(msgspec.structs.replace(record, attempts=attempts), media_type="application/json")


def _unnamed(tries: list[ReplicaTry]) -> list[ReplicaTry]:
    """The replicas that were asked, without their addresses, which operators alone see."""
    return [
        msgspec.structs.replace(
            tried, replica=f"replica {number}", error=None if tried.error is None else tried.error.partition(":")[0]
        )
        for number, tried in enumerate(tries, 1)
    ]


async def record_of_caller(request: HttpRequest, request_id: str) -> Recorded:
    """Return the caller's own request of this id. Raises `ApiError`: 404 without one, 503 without a database."""
    record = await reached(serving_of(request).records.find(request_id))
    key_id = caller_of(request).key_id
    if record is None or (key_id is not None and record.key_id != key_id):
        raise ApiError(
            404, f"No request {request_id[:128]!r} is recorded.", param="request_id", code="request_not_found"
        )
    return record


_RATINGS = {"up": 1.0, "down": 0.0}


class FeedbackGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Feedback on the answer with this id, or on the last one of the agent's session that its client gives this id: a
    rating, a score from 0 to 1, how the caller's own check of the work ended, or the correct answer."""

    request_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    rating: Literal["up", "down"] | None = None
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
    check: Literal["passed", "failed"] | None = None
    correction: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None
    comment: Annotated[str, Meta(max_length=8192)] | None = None


@post("/feedback", status_code=200, operation_class=describe(FeedbackGiven, FeedbackTaken), summary="Rate an answer")
async def give_feedback(request: HttpRequest) -> Response[Any]:
    """Stored at once, and counts in the decisions of its own key only; newer feedback on the same answer replaces
    older. A check is also how the work of an agent's session ended, for its next turn. Counts as a request of the key.

    429 beyond that limit, 503 while the database is down.
    """
    feedback = await read_body(request, FeedbackGiven)
    if (feedback.request_id is None) == (feedback.session is None):
        raise bad_request("Give a request_id, or the session of an agent's client.", "request_id")
    judgements = [name for name in ("rating", "score", "check") if getattr(feedback, name) is not None]
    if len(judgements) > 1:
        raise bad_request("Give one of a rating, a score and a check.", judgements[1])
    if not judgements and feedback.correction is None:
        raise bad_request("Give a rating (up or down), a score from 0 to 1, a check or a correction.", "rating")
    admission_control = access_of(request).tenancy.admission_control
    admission = await admission_control.enter_call(caller_of(request), f"feedback-{uuid4().hex}")
    try:
        counted = await _taken(request, feedback)
    finally:
        admission.settle(0.0, 0)
    return Response(counted, media_type="application/json", headers=admission.headers)


async def _taken(request: HttpRequest, posted: FeedbackGiven) -> FeedbackTaken:
    serving = serving_of(request)
    record = await record_of_caller(request, posted.request_id or await _last_of_session(request, posted.session or ""))
    if isinstance(record, EmbeddingRecord):
        raise bad_request("Only answers can be rated: this request was for embeddings.", "request_id", "not_an_answer")
    score = posted.score if posted.rating is None else _RATINGS[posted.rating]
    feedback = Feedback(score=score, check=posted.check, correction=posted.correction, comment=posted.comment)
    taken = await reached(serving.feedback.take(record, feedback))
    step = record.decision.inputs.session
    if step is not None and posted.check is not None:
        await serving.routing.conversations.note_check(bytes.fromhex(step.session), posted.check)
    return taken


async def _last_of_session(request: HttpRequest, session: str) -> str:
    """The id of the newest stored step of the caller's session of this name. Raises `ApiError` 404 and 503."""
    digests = session_digests(session, caller_of(request).key_id)
    request_id = await reached(last_step(serving_of(request).database, [digest.hex() for digest in digests]))
    if request_id is None:
        raise ApiError(404, f"No session {session!r} is stored.", param="session", code="session_not_found")
    return request_id


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input of the decision: a conversation or a prompt, the requested model, the token limit, the tags that rules may
    look at; wishes go in x-aio headers."""

    model: str = "auto"
    messages: list[Message] | None = None
    prompt: str | None = None
    max_tokens: PositiveInt | None = None
    metadata: Metadata | None = None


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """A decision and its cost: `tier` and `model` that would answer, `cpu_ms` of CPU time spent on it."""

    tier: int
    """The tier that would answer."""
    model: str
    """The model that would answer."""
    reason: str
    p_ok: list[float]
    costs_usd: list[float]
    costs_estimated: list[int]
    """The tiers whose price is an estimate."""
    cpu_ms: float
    """CPU time spent on the decision."""
    decision: Decision


@post("/route", status_code=200, operation_class=describe(RouteRequest, Routing), summary="Dry-run a routing decision")
async def route(request: HttpRequest) -> Response[Any]:
    """Tier, the probabilities of all tiers, predicted costs, and why; nothing is generated, billed or recorded. It
    counts against the limits of the key, with the tokens of its prompt."""
    body = await read_body(request, RouteRequest)
    serving = serving_of(request)
    head = received(request)
    options = routing_options(head.headers, serving.routing.served.strongest)
    model = serving.routing.served.unaliased(body.model, head.caller)
    messages = _messages(body)
    inference_request = unanswered_request(
        head,
        model,
        messages=messages,
        max_tokens=body.max_tokens,
        options=options,
        api="chat",
        metadata=body.metadata,
        client=recognised(head.headers, body.metadata, messages),
        ruled_headers=ruled_headers(serving, head),
    )
    async with serving.service.reading(inference_request) as admission:
        began = time.thread_time()
        decision = await serving.service.decided(inference_request)
        cpu_ms = (time.thread_time() - began) * 1e3
    return Response(
        Routing(
            tier=decision.tier,
            model=serving.routing.served.chosen(decision).model,
            reason=decision.reason,
            p_ok=decision.inputs.prediction.p_ok,
            costs_usd=decision.inputs.costs,
            costs_estimated=[spec.number for spec in serving.routing.served.catalog.tiers if spec.price.estimated],
            cpu_ms=cpu_ms,
            decision=decision,
        ),
        media_type="application/json",
        headers=admission.headers,
    )


def _messages(body: RouteRequest) -> list[Turn]:
    if (body.messages is None) == (body.prompt is None):
        raise bad_request("Give either messages or prompt.", "messages", "invalid_value")
    if body.messages is not None:
        return turns_of(body.messages)
    return [Turn.of("user", body.prompt or "")]
