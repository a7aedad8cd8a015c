"""`POST /v1/responses`: OpenAI's newer API over the same tiers."""

from functools import partial
from typing import Any

import msgspec
from litestar import post
from litestar.response import Response
from litestar.types import ASGIApp

from gateway.base.errors import ApiError, ContextLengthError, as_api_error
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import OpenAIStream
from gateway.inference.api.build_request import received
from gateway.inference.api.parsing import IGNORED, MENDED, read_and_build, read_fields
from gateway.inference.api.responses.as_chat import renamed
from gateway.inference.api.responses.body import ResponseBody, failed_response
from gateway.inference.api.responses.events import (
    CompactedBody,
    CompactedEvents,
    ResponseEvents,
    compacted,
    failed_before_a_word,
)
from gateway.inference.api.responses.exchange import Exchange, exchange_of
from gateway.inference.api.responses.native_items import asks_for_compaction, compacting, without_codex_items
from gateway.inference.api.responses.schemas import ResponsesRequest, ToolChoice
from gateway.inference.api.sending import ignored_header, respond
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import inference_post
from tiers.dialects.client_forms import mend_responses
from tiers.dialects.decoding import FieldReader
from tiers.errors import TierRequestError

RESPONSES = FieldReader("/v1/responses", ResponsesRequest, forwards="known", mend=mend_responses)


@inference_post(
    "/responses",
    describe(ResponsesRequest, streamed=True),
    "Answer an input",
    # Clients know a response that they may go on from by its "resp_".
    id_prefix="resp",
    id_separator="_",
)
async def responses(request: HttpRequest) -> ASGIApp:
    """Answer a text or a list of items, whole or as OpenAI's events; docs/clients.md says what is stored."""
    serving = serving_of(request)
    _, (is_compaction, exchange) = await read_and_build(serving, request, RESPONSES, partial(_exchange, request))
    answer_format = (CompactionFormat if is_compaction else ResponsesFormat)(serving, exchange)
    return await _answered(request, serving, exchange, answer_format)


@inference_post(
    "/responses/compact", describe(ResponsesRequest), "Compact a conversation", id_prefix="resp", id_separator="_"
)
async def compact(request: HttpRequest) -> ASGIApp:
    """The conversation as what the user said last and a summary, written by the tier that would answer; the summary
    stands for what came before it in later requests."""
    serving = serving_of(request)
    body = _known_items(request, await read_fields(serving, request, RESPONSES))
    asked = msgspec.structs.replace(compacting(body), stream=None, store=False)
    exchange = await exchange_of(serving, received(request), asked, await request.body(), is_compaction=True)
    return await _answered(request, serving, exchange, CompactFormat(serving, exchange, body))


class InputTokens(msgspec.Struct, frozen=True):
    """The tokens of the whole prompt, tools included."""

    input_tokens: int
    object: str = "response.input_tokens"


@post(
    "/responses/input_tokens",
    status_code=200,
    operation_class=describe(ResponsesRequest, InputTokens),
    summary="Count the tokens of an input",
)
async def count_input(request: HttpRequest) -> Response[Any]:
    """As `/v1/messages/count_tokens` does, with the conversation that the input goes on from."""
    serving = serving_of(request)
    _, (_, exchange) = await read_and_build(serving, request, RESPONSES, partial(_exchange, request))
    try:
        tokens, limits = await serving.service.counted(exchange.request)
    except ApiError as error:
        raise renamed(error) from None
    ignored = {name.decode(): value.decode() for name, value in ignored_header(request)}
    return Response(InputTokens(tokens), media_type="application/json", headers={**limits, **ignored})


async def _exchange(request: HttpRequest, read: ResponsesRequest) -> tuple[bool, Exchange]:
    """Whether the body only asks for a compaction, and the exchange."""
    serving, body, raw = serving_of(request), _known_items(request, read), await request.body()
    is_compaction = asks_for_compaction(body)
    if request.scope["state"].get(MENDED) and serving.routing.served.has_responses:
        raw = msgspec.json.encode(RESPONSES.mended(raw))
    asked = compacting(body) if is_compaction else body
    return is_compaction, await exchange_of(serving, received(request), asked, raw, is_compaction=is_compaction)


def _known_items(request: HttpRequest, body: ResponsesRequest) -> ResponsesRequest:
    keeps_own = serving_of(request).routing.served.has_responses
    body, left_out = without_codex_items(body, keeps_own=keeps_own)
    if left_out:
        if isinstance(body.tool_choice, ToolChoice) and f"tools.{body.tool_choice.type}" in left_out:
            body = msgspec.structs.replace(body, tool_choice=None)
        state = request.scope["state"]
        state[IGNORED] = [*state.get(IGNORED, ()), *left_out]
    return body


async def _answered(
    request: HttpRequest, serving: Serving, exchange: Exchange, answer_format: "ResponsesFormat"
) -> ASGIApp:
    try:
        return await respond(request, serving, exchange.request, answer_format, answer_format.store)
    except (ApiError, TierRequestError) as error:
        raise renamed(as_api_error(error)) from None


class ResponsesFormat(OpenAIStream):
    """The format of `/v1/responses`."""

    _body_type, _events_type = ResponseBody, ResponseEvents

    def __init__(self, serving: Serving, exchange: Exchange) -> None:
        self._serving, self._exchange = serving, exchange
        self._kept: ResponseBody | None = None
        self._events: ResponseEvents | None = None

    async def store(self, answer: Answer) -> None:
        """Store the response of a finished answer, before its last bytes are written."""
        if self._events is not None:
            self._events.end()
        await self._exchange.store(self._body(answer).stored())

    def whole(self, answer: Answer) -> bytes:
        return msgspec.json.encode(self._body(answer).finished())

    def chunks(self, answer: Answer) -> ResponseEvents:
        self._events = self._events_type(answer, self._body(answer))
        return self._events

    def is_told_in_stream(self, error: Exception) -> bool:
        """See `AnswerFormat.is_told_in_stream`: Codex makes its conversation shorter after this event alone."""
        return isinstance(as_api_error(error), ContextLengthError)

    def failed(self, error: Exception) -> bytes:
        return failed_before_a_word(failed_response(self._exchange, renamed(as_api_error(error)).body))

    def _body(self, answer: Answer) -> ResponseBody:
        """The body of the answer, which has started."""
        if self._kept is None:
            sampling = self._serving.routing.served.spec(answer.tier.number).sampling
            self._exchange.answered_as(answer.request)
            self._kept = self._body_type(self._exchange, answer, sampling)
        return self._kept


class CompactionFormat(ResponsesFormat):
    """The format of a compaction that `/v1/responses` is asked for."""

    _body_type, _events_type = CompactedBody, CompactedEvents


class CompactFormat(CompactionFormat):
    """The format of `/v1/responses/compact`; `said` is what it was asked with."""

    def __init__(self, serving: Serving, exchange: Exchange, said: ResponsesRequest) -> None:
        super().__init__(serving, exchange)
        self._said = said

    def whole(self, answer: Answer) -> bytes:
        return msgspec.json.encode(compacted(self._body(answer), self._said))
