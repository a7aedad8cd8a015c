"""`POST /v1/chat/completions`."""

from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from gateway.api.answers import ChatAnswer
from gateway.api.constraints import format_of, tooling_of
from gateway.api.generating import ask_fields, read_body, respond
from gateway.api.operations import describe
from gateway.api.parsing import check_chat
from gateway.api.schemas import ChatRequest
from gateway.ask import Ask
from gateway.parts import HttpRequest

_decoder = msgspec.json.Decoder(ChatRequest)


@post(
    "/chat/completions",
    status_code=200,
    operation_class=describe(ChatRequest, ChatAnswer),
    summary="Answer a conversation",
    opt={"id_prefix": "chatcmpl"},
)
async def chat_completions(request: HttpRequest) -> Response[Any]:
    """Answer the last turn, whole or as server-sent events, with the tier that routing chose or the caller named."""
    body = await read_body(request, _decoder)
    messages = check_chat(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    ask = Ask(
        api="chat",
        messages=messages,
        tooling=tooling_of(body),
        response_format=format_of(body.response_format),
        reasoning_effort=body.reasoning_effort,
        reasoning_budget=body.thinking_token_budget,
        **ask_fields(request, body, logprobs, body.store),
    )
    return await respond(request, ask, bool(body.stream_options and body.stream_options.include_usage))
