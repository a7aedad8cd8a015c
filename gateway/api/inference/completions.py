"""`POST /v1/completions`: continuing raw text or token ids, without a chat template."""

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.api.inference.answers import CompletionAnswer
from gateway.api.inference.generating import CompletionsFormat, Received, read_body, received, request_fields, respond
from gateway.api.inference.parsing import check_completion
from gateway.api.inference.schemas import CompletionRequest
from gateway.api.operations import describe
from gateway.parts import HttpRequest, Parts, parts_of
from gateway.requests.inference_request import InferenceRequest

_decoder = msgspec.json.Decoder(CompletionRequest)


@post(
    "/completions",
    status_code=200,
    operation_class=describe(CompletionRequest, CompletionAnswer, streamed=True),
    summary="Continue a text",
    opt={"id_prefix": "cmpl"},
)
async def completions(request: HttpRequest) -> ASGIApp:
    """Continue each prompt, whole or as server-sent events."""
    body = await read_body(request, _decoder)
    inference_request = completion_request(parts_of(request), received(request), body)
    return await respond(request, inference_request, CompletionsFormat(parts_of(request), body.stream_options))


def completion_request(parts: Parts, given: Received, body: CompletionRequest) -> InferenceRequest:
    """What a checked body asks for. Raises `ApiError` 400 that names the parameter."""
    return InferenceRequest(
        api="completion",
        prompts=check_completion(body),
        echo=bool(body.echo),
        best_of=body.best_of,
        **request_fields(parts, given, body, body.logprobs),
    )
