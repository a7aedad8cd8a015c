"""`POST /v1/chat/completions`."""

from litestar.types import ASGIApp

from gateway.api.access.guard import InferenceRoute
from gateway.api.inference.answers import ChatAnswer
from gateway.api.inference.build_request import chat_request, received
from gateway.api.inference.chunks import CompletionsFormat
from gateway.api.inference.ignored_fields import FieldReader
from gateway.api.inference.parsing import read_fields
from gateway.api.inference.schemas import HARMLESS, ChatRequest
from gateway.api.operations import describe
from gateway.api.streaming.sending import respond
from gateway.protocols.http_request import HttpRequest
from gateway.serving import serving_of

CHAT = FieldReader("/v1/chat/completions", ChatRequest, HARMLESS)


@InferenceRoute(
    "/chat/completions",
    http_method="POST",
    status_code=200,
    operation_class=describe(ChatRequest, ChatAnswer, streamed=True),
    summary="Answer a conversation",
    opt={"id_prefix": "chatcmpl"},
)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer the last turn, whole or as server-sent events, with the tier that routing chose or the caller named."""
    body = await read_fields(request, CHAT)
    serving = serving_of(request)
    answer_format = CompletionsFormat(serving, body.stream_options)
    return await respond(request, serving, chat_request(serving, received(request), body), answer_format)
