"""`POST /v1/messages`: Anthropic's Messages API."""

import msgspec
from litestar.types import ASGIApp

from gateway.answering.answer import Answer
from gateway.api.access.guard import InferenceRoute
from gateway.api.inference.build_request import chat_request, received
from gateway.api.inference.ignored_fields import FieldReader
from gateway.api.inference.parsing import read_fields
from gateway.api.messages.as_chat import chat_of
from gateway.api.messages.errors import STATUSES, MessagesErrorEnvelope, error_event
from gateway.api.messages.events import PING, MessageEvents
from gateway.api.messages.message_body import MessageBody, ThinkingShown, whole_message
from gateway.api.messages.schemas import MessagesRequest, Thinking
from gateway.api.operations import describe
from gateway.api.streaming.sending import respond
from gateway.errors import ApiError
from gateway.protocols.http_request import HttpRequest
from gateway.serving import serving_of

MESSAGES = FieldReader("/v1/messages", MessagesRequest)


@InferenceRoute(
    "/messages",
    http_method="POST",
    status_code=200,
    operation_class=describe(
        MessagesRequest, MessageBody, streamed=True, envelope=MessagesErrorEnvelope, errors=STATUSES
    ),
    summary="Answer a conversation in Anthropic's format",
    opt={"id_prefix": "msg", "id_separator": "_"},
)
async def messages(request: HttpRequest) -> ASGIApp:
    """Answer the last turn as `/v1/chat/completions` does, whole or as Anthropic's events; see docs/clients.md."""
    body = await read_fields(request, MESSAGES)
    serving, given = serving_of(request), received(request)
    chat = chat_of(body)
    try:
        inference_request = chat_request(serving, given, chat.request)
        # Anthropic's metadata is the name of the user, and no tags.
        passed = {name: value for name, value in inference_request.passed.items() if name != "metadata"}
        inference_request = msgspec.structs.replace(inference_request, passed=passed)
        return await respond(request, serving, inference_request, MessagesFormat(given.request_id, body.thinking))
    except ApiError as error:
        raise chat.renamed(error) from None


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

    def failed(self, error: Exception) -> bytes:
        """See `AnswerFormat.failed`."""
        return error_event(error, self._request_id)
