"""`POST /v1/responses`: OpenAI's newer API over the same tiers."""

from collections.abc import Callable
from functools import partial

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.base.errors import ContextLengthError, as_api_error
from gateway.base.inference_request import InferenceRequest
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import AnswerFormat, routed
from gateway.inference.api.build_request import received
from gateway.inference.api.parsing import MENDED, note_ignored, read_and_build, read_fields
from gateway.inference.api.responses.exchange import Exchange, exchange_of
from gateway.inference.api.sending import respond, token_count
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import inference_post
from tiers.catalog.tier_spec import SamplingDefaults
from tiers.dialects.client_forms import mend_responses
from tiers.dialects.decoding import FieldReader
from tiers.dialects.responses_answer import (
    CompactedBody,
    CompactedWriter,
    ResponseBody,
    ResponseEnd,
    ResponseError,
    ResponseHead,
    ResponseWriter,
    compacted,
)
from tiers.dialects.responses_items import asks_for_compaction, compacting, without_codex_items
from tiers.dialects.responses_schemas import ResponsesRequest, ToolChoice
from tiers.tier import Delta, Usage

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
    return await respond(request, serving, exchange.request, answer_format, answer_format.store)


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
    answer_format = CompactFormat(serving, exchange, body)
    return await respond(request, serving, exchange.request, answer_format, answer_format.store)


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
async def count_input(request: HttpRequest) -> ASGIApp:
    """As `/v1/messages/count_tokens` does, with the conversation that the input goes on from."""
    _, (_, exchange) = await read_and_build(serving_of(request), request, RESPONSES, partial(_exchange, request))
    return await token_count(request, exchange.request, InputTokens)


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
        note_ignored(request, left_out)
    return body


class ResponsesFormat(AnswerFormat):
    """The format of `/v1/responses`."""

    _body_type, _writer_type = ResponseBody, ResponseWriter

    def __init__(self, serving: Serving, exchange: Exchange) -> None:
        self._serving, self._exchange = serving, exchange
        self._kept: ResponseBody | None = None
        self._writer: ResponseWriter | None = None

    async def store(self, answer: Answer) -> None:
        """Store the response of a finished answer, before its last bytes are written."""
        body, choice = self._body(answer), answer.choices[0]
        if self._writer is not None:
            self._writer.finish(choice, answer.answered_by)
        else:
            body.take(choice, answer.answered_by)
        if self._exchange.stored:
            await self._exchange.store(body.to_store(_end(answer)))

    def whole(self, answer: Answer) -> bytes:
        body = self._body(answer)
        return msgspec.json.encode(body.ended(_end(answer), stored=self._exchange.stored))

    def chunks(self, answer: Answer) -> "ResponseChunks":
        self._writer = self._writer_type(self._body(answer))
        return ResponseChunks(answer, self._exchange, self._writer)

    def is_told_in_stream(self, error: Exception) -> bool:
        """See `AnswerFormat.is_told_in_stream`: Codex makes its conversation shorter after this event alone."""
        return isinstance(as_api_error(error), ContextLengthError)

    def failed(self, error: Exception) -> bytes:
        request = self._exchange.request
        body = ResponseBody(_head(self._exchange, request, request.requested_model), self._exchange.body)
        return ResponseWriter(body).fail_at_once(_error(error))

    def _body(self, answer: Answer) -> ResponseBody:
        """The body of the answer, which has started."""
        if self._kept is None:
            sampling = self._serving.routing.served.spec(answer.tier.number).sampling
            self._exchange.answered_as(answer.request)
            head = _head(self._exchange, answer.request, answer.tier.model, sampling)
            self._kept = self._body_type(head, self._exchange.body)
        return self._kept


class ResponseChunks:
    """`Chunks` in the wording of `/v1/responses`."""

    def __init__(self, answer: Answer, exchange: Exchange, writer: ResponseWriter) -> None:
        self._answer, self._exchange, self._writer = answer, exchange, writer
        self.piece: Callable[[Delta], bytes] = writer.piece

    def opening(self) -> bytes:
        return self._writer.begin(stored=self._exchange.stored)

    def closing(self, answer: Answer) -> bytes:
        return self._writer.end(_end(answer), stored=self._exchange.stored)

    def failed(self, error: Exception) -> bytes:
        return self._writer.fail(_error(error), None if self._answer.record is None else _end(self._answer))


def _head(
    exchange: Exchange, request: InferenceRequest, model: str, sampling: SamplingDefaults | None = None
) -> ResponseHead:
    return ResponseHead(
        id=request.request_id,
        created_at=int(request.created_at),
        model=model,
        service_tier=request.service_tier or "default",
        sampling=sampling or SamplingDefaults(),
        tools=None if exchange.raw_items is None else exchange.raw_items.tools or None,
    )


def _end(answer: Answer) -> ResponseEnd:
    record = answer.record
    completed_at = 0.0 if record is None else record.created_at + record.timings.e2e_ms / 1e3
    return ResponseEnd(usage=answer.billed or Usage(), completed_at=int(completed_at), x_aio=routed(answer))


def _error(error: Exception) -> ResponseError:
    body = as_api_error(error).body
    return ResponseError(body.code or body.type, body.message)


class CompactionFormat(ResponsesFormat):
    """The format of a compaction that `/v1/responses` is asked for."""

    _body_type, _writer_type = CompactedBody, CompactedWriter


class CompactFormat(CompactionFormat):
    """The format of `/v1/responses/compact`; `said` is what it was asked with."""

    def __init__(self, serving: Serving, exchange: Exchange, said: ResponsesRequest) -> None:
        super().__init__(serving, exchange)
        self._said = said

    def whole(self, answer: Answer) -> bytes:
        return msgspec.json.encode(compacted(self._body(answer), _end(answer), self._said))
