"""`POST /v1/chat/completions`."""

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.api.inference.answers import ChatAnswer
from gateway.api.inference.constraints import format_of, tooling_of
from gateway.api.inference.generating import CompletionsFormat, Received, read_body, received, request_fields, respond
from gateway.api.inference.parsing import check_chat, served_tier
from gateway.api.inference.schemas import ChatRequest
from gateway.api.operations import describe
from gateway.parts import HttpRequest, Parts, parts_of
from gateway.requests.inference_request import InferenceRequest

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
    inference_request = chat_request(parts_of(request), received(request), body)
    return await respond(request, inference_request, CompletionsFormat(parts_of(request), body.stream_options))


def chat_request(parts: Parts, given: Received, body: ChatRequest) -> InferenceRequest:
    """What a checked body asks for. Raises `ApiError` 400 that names the parameter."""
    messages = check_chat(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    fields = request_fields(parts, given, body, logprobs, body.store)
    return InferenceRequest(
        api="chat",
        messages=messages,
        tooling=tooling_of(body),
        response_format=format_of(body.response_format),
        reasoning_effort=body.reasoning_effort,
        reasoning_budget=body.thinking_token_budget,
        service_tier=served_tier(body.service_tier, fields["priority"]),
        metadata=body.metadata,
        **fields,
    )
