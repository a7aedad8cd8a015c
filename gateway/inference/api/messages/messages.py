"""`POST /v1/messages`: Anthropic's Messages API."""

import re
from collections.abc import Mapping

import msgspec
from litestar.types import ASGIApp

from gateway.base.errors import ApiError, as_api_error
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.answering.answer import Answer
from gateway.inference.api.messages.as_chat import chat_of
from gateway.inference.api.messages.errors import STATUSES, MessagesErrorEnvelope, error_event
from gateway.inference.api.messages.events import PING, MessageEvents
from gateway.inference.api.messages.message_body import MessageBody, ThinkingShown, whole_message
from gateway.inference.api.messages.schemas import MessagesRequest, ShownMessages, Thinking
from gateway.inference.api.reading.build_request import chat_request, received
from gateway.inference.api.reading.ignored_fields import FieldReader
from gateway.inference.api.reading.parsing import read_fields
from gateway.inference.api.writing.sending import respond
from gateway.inference.serving import serving_of
from gateway.tenancy.access.guard import InferenceRoute
from tiers.errors import TierRequestError

_BETAS = re.compile(r"[A-Za-z0-9._-]+(?:, ?[A-Za-z0-9._-]+){0,31}")
MESSAGES = FieldReader("/v1/messages", MessagesRequest, forwards="any")


@InferenceRoute(
    "/messages",
    http_method="POST",
    status_code=200,
    operation_class=describe(
        ShownMessages, MessageBody, streamed=True, envelope=MessagesErrorEnvelope, errors=STATUSES
    ),
    summary="Answer a conversation in Anthropic's format",
    opt={"id_prefix": "msg", "id_separator": "_"},
)
async def messages(request: HttpRequest) -> ASGIApp:
    """Answer the last turn as `/v1/chat/completions` does, whole or as Anthropic's events; see docs/clients.md."""
    body = await read_fields(request, MESSAGES)
    serving, given = serving_of(request), received(request)
    chat = chat_of(body, betas_of(given.headers))
    try:
        inference_request = chat.as_given(chat_request(serving, given, chat.request))
        # Anthropic's metadata is the name of the user, and no tags.
        passed = {name: value for name, value in inference_request.generation.passed.items() if name != "metadata"}
        inference_request = inference_request.with_generation(passed=passed)
        return await respond(request, serving, inference_request, MessagesFormat(given.request_id, body.thinking))
    except (ApiError, TierRequestError) as error:
        raise chat.renamed(as_api_error(error)) from None


def betas_of(headers: Mapping[str, str]) -> str:
    """The header by which a caller asks Anthropic for parts of its API; "" for one that cannot be."""
    asked = headers.get("anthropic-beta", "")
    return asked if _BETAS.fullmatch(asked) else ""


class MessagesFormat:
    """The format of `/v1/messages`."""

    keep_alive = PING
    id_headers: tuple[bytes, ...] = (b"request-id", b"x-request-id")

    def __init__(self, request_id: str, thinking: Thinking | None) -> None:
        self._request_id = request_id
        # Who did not ask for thoughts does not look for the text behind them.
        asked = thinking is not None and thinking.type != "disabled"
        self._thinking = ThinkingShown(asked, thinking is None or thinking.display != "omitted")

    def whole(self, answer: Answer) -> bytes:
        """See `AnswerFormat.whole`."""
        return msgspec.json.encode(whole_message(answer, self._thinking))

    def chunks(self, answer: Answer) -> MessageEvents:
        """See `AnswerFormat.chunks`."""
        return MessageEvents(answer, self._thinking)

    def is_told_in_stream(self, error: Exception) -> bool:
        """See `AnswerFormat.is_told_in_stream`."""
        return False

    def failed(self, error: Exception) -> bytes:
        """See `AnswerFormat.failed`."""
        return error_event(error, self._request_id)
