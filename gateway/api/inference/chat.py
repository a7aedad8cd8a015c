"""`POST /v1/chat/completions`."""

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.api.inference.answers import ChatAnswer
from gateway.api.inference.build_request import chat_request, received
from gateway.api.inference.chunks import CompletionsFormat
from gateway.api.inference.parsing import read_body
from gateway.api.inference.schemas import ChatRequest
from gateway.api.operations import describe
from gateway.api.streaming.sending import respond
from gateway.parts import HttpRequest, parts_of

_decoder = msgspec.json.Decoder(ChatRequest)


@post(
    "/chat/completions",
    status_code=200,
    operation_class=describe(ChatRequest, ChatAnswer, streamed=True),
    summary="Answer a conversation",
    opt={"id_prefix": "chatcmpl"},
)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer the last turn, whole or as server-sent events, with the tier that routing chose or the caller named."""
    body = await read_body(request, _decoder)
    parts = parts_of(request)
    answer_format = CompletionsFormat(parts, body.stream_options)
    return await respond(request, parts, chat_request(parts, received(request), body), answer_format)
