"""Anthropic's Messages API: `POST /v1/messages`, and `POST /v1/messages/count_tokens`, how long a prompt is for the
tier that would answer it."""

import re
from collections.abc import Callable
from functools import partial

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.base.inference_request import SERVICE_TIERS
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answer import Answer
from gateway.inference.api.answers import AnswerFormat, routed
from gateway.inference.api.build_request import read_request
from gateway.inference.api.messages.schemas import (
    STATUSES,
    ShownCountTokens,
    ShownMessage,
    ShownMessages,
    envelope_of,
    error_event,
)
from gateway.inference.api.sending import respond, token_count
from gateway.inference.service import serving_of
from gateway.tenancy.guard import inference_post
from tiers.conversation import ReadRequest
from tiers.dialects.caller_errors import MessagesErrorEnvelope
from tiers.dialects.client_forms import mend_messages
from tiers.dialects.decoding import FieldReader
from tiers.dialects.messages import (
    PING,
    CountTokensRequest,
    MessageBody,
    MessageHead,
    MessagesRequest,
    MessageWriter,
    Thinking,
    ThinkingShown,
    whole_message,
)
from tiers.dialects.messages_request import read_messages
from tiers.tier import Usage

_BETAS = re.compile(r"[A-Za-z0-9._-]+(?:, ?[A-Za-z0-9._-]+){0,31}")
MESSAGES = FieldReader("/v1/messages", MessagesRequest, forwards="any", mend=mend_messages, shape=ShownMessages)


@inference_post(
    "/messages",
    describe(ShownMessages, ShownMessage, streamed=True, envelope=MessagesErrorEnvelope, errors=STATUSES),
    "Answer a conversation in Anthropic's format",
    id_prefix="msg",
    id_separator="_",
)
async def messages(request: HttpRequest) -> ASGIApp:
    """Answer the last turn as `/v1/chat/completions` does, whole or as Anthropic's events; see docs/clients.md."""
    body, asked = await read_request(request, MESSAGES, _reader(request))
    return await respond(request, serving_of(request), asked, MessagesFormat(asked.request_id, body.thinking))


def _reader(request: HttpRequest) -> Callable[[CountTokensRequest], ReadRequest]:
    """Return what reads a body, with the header by which its caller asks Anthropic for parts of its API, if it may
    be."""
    betas = request.scope["state"]["headers"].get("anthropic-beta", "")
    keeps_own = serving_of(request).routing.served.has_messages
    return partial(read_messages, betas=betas if _BETAS.fullmatch(betas) else "", keeps_own=keeps_own)


_SERVED = {"priority": "priority", "batch": "batch"}


def head_of(answer: Answer) -> MessageHead:
    asked = answer.request.generation
    return MessageHead(
        id=answer.request.request_id,
        model=answer.tier.model,
        service_tier=_SERVED.get(SERVICE_TIERS[asked.priority], "standard"),
        stop=asked.stop,
        is_remote=answer.tier.core_name is None,
    )


def body_of(answer: Answer, thinking: ThinkingShown) -> MessageBody:
    """Return the body of a finished answer."""
    body = whole_message(head_of(answer), answer.choices[0], answer.usage or Usage(), thinking)
    return msgspec.structs.replace(body, x_aio=routed(answer))


class MessageEvents(MessageWriter):
    """`Chunks` in the wording of the Messages API."""

    def __init__(self, answer: Answer, thinking: ThinkingShown) -> None:
        super().__init__(head_of(answer), thinking)
        self._answer = answer

    def opening(self) -> bytes:
        return self.begin(self._answer.source.bill().usage)

    def closing(self, answer: Answer) -> bytes:
        return self.end(answer.choices[0], answer.usage or Usage(), routed(answer))

    def failed(self, error: Exception) -> bytes:
        """See `error_event`; of an answer that began also what is billed, and how the part that came was made."""
        if self._answer.record is None:
            return error_event(error, self.head.id)
        envelope = envelope_of(error, self.head.id)
        return self.broken(envelope, self._answer.billed or Usage(), routed(self._answer))


class MessagesFormat(AnswerFormat):
    """The format of `/v1/messages`."""

    keep_alive = PING
    id_headers = (b"request-id", b"x-request-id")

    def __init__(self, request_id: str, thinking: Thinking | None) -> None:
        self._request_id = request_id
        # Who did not ask for thoughts does not look for the text behind them.
        asked = thinking is not None and thinking.type != "disabled"
        self._thinking = ThinkingShown(asked, thinking is None or thinking.display != "omitted")

    def whole(self, answer: Answer) -> bytes:
        return msgspec.json.encode(body_of(answer, self._thinking))

    def chunks(self, answer: Answer) -> MessageEvents:
        return MessageEvents(answer, self._thinking)

    def failed(self, error: Exception) -> bytes:
        return error_event(error, self._request_id)


class TokenCount(msgspec.Struct, frozen=True):
    """The tokens of the whole prompt, tools included."""

    input_tokens: int


COUNT_TOKENS = FieldReader("/v1/messages/count_tokens", CountTokensRequest, mend=mend_messages, shape=ShownCountTokens)


@post(
    "/messages/count_tokens",
    status_code=200,
    operation_class=describe(ShownCountTokens, TokenCount, envelope=MessagesErrorEnvelope, errors=STATUSES),
    summary="Count the tokens of a conversation in Anthropic's format",
)
async def count_tokens(request: HttpRequest) -> ASGIApp:
    """By the tokeniser of the tier that would answer; an estimate for one that runs elsewhere. Nothing is generated or
    billed. It counts as a request against the limits of the key, and no tokens against them."""
    _, asked = await read_request(request, COUNT_TOKENS, _reader(request))
    return await token_count(request, asked, TokenCount, (b"request-id", asked.request_id.encode()))
