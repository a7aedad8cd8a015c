"""`POST /v1/completions`: continuing raw text or token ids, without a chat template."""

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.api.inference.answers import CompletionAnswer
from gateway.api.inference.generating import CompletionsWording, Received, ask_fields, read_body, received, respond
from gateway.api.inference.parsing import check_completion
from gateway.api.inference.schemas import CompletionRequest
from gateway.api.operations import describe
from gateway.parts import HttpRequest, Parts, parts_of
from gateway.requests.inference_request import Ask

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
    ask = completion_ask(parts_of(request), received(request), body)
    return await respond(request, ask, CompletionsWording(parts_of(request), body.stream_options))


def completion_ask(parts: Parts, given: Received, body: CompletionRequest) -> Ask:
    """What a checked body asks for. Raises `ApiError` 400 that names the parameter."""
    return Ask(
        api="completion",
        prompts=check_completion(body),
        echo=bool(body.echo),
        best_of=body.best_of,
        **ask_fields(parts, given, body, body.logprobs),
    )
