"""`POST /v1/chat/completions`, and `POST /v1/completions`: raw text or token ids, without a chat template."""

from litestar.types import ASGIApp

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.build_request import chat_request, completion_request, received
from gateway.inference.api.reading.foreign_forms import mend_chat
from gateway.inference.api.reading.ignored_fields import FieldReader
from gateway.inference.api.reading.parsing import read_fields
from gateway.inference.api.reading.schemas import HARMLESS, ChatRequest, CompletionRequest
from gateway.inference.api.writing.answers import ChatAnswer, CompletionAnswer
from gateway.inference.api.writing.chunks import CompletionsFormat
from gateway.inference.api.writing.sending import respond
from gateway.inference.serving import serving_of
from gateway.tenancy.access.guard import InferenceRoute

CHAT = FieldReader("/v1/chat/completions", ChatRequest, HARMLESS, "known", mend_chat)
COMPLETION = FieldReader("/v1/completions", CompletionRequest, forwards="known")


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


@InferenceRoute(
    "/completions",
    http_method="POST",
    status_code=200,
    operation_class=describe(CompletionRequest, CompletionAnswer, streamed=True),
    summary="Continue a text",
    opt={"id_prefix": "cmpl"},
)
async def completions(request: HttpRequest) -> ASGIApp:
    """Continue each prompt, whole or as server-sent events."""
    body = await read_fields(request, COMPLETION)
    serving = serving_of(request)
    answer_format = CompletionsFormat(serving, body.stream_options)
    return await respond(request, serving, completion_request(serving, received(request), body), answer_format)
