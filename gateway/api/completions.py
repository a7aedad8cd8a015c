"""`POST /v1/completions`: continuing raw text or token ids, without a chat template."""

from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from gateway.api.answers import CompletionAnswer
from gateway.api.generating import ask_fields, read_body, respond
from gateway.api.operations import describe
from gateway.api.parsing import check_completion
from gateway.api.schemas import CompletionRequest
from gateway.ask import Ask
from gateway.parts import HttpRequest

_decoder = msgspec.json.Decoder(CompletionRequest)


@post(
    "/completions",
    status_code=200,
    operation_class=describe(CompletionRequest, CompletionAnswer),
    summary="Continue a text",
    opt={"id_prefix": "cmpl"},
)
async def completions(request: HttpRequest) -> Response[Any]:
    """Continue each prompt, whole or as server-sent events."""
    body = await read_body(request, _decoder)
    ask = Ask(
        api="completion",
        prompts=check_completion(body),
        echo=bool(body.echo),
        best_of=body.best_of,
        **ask_fields(request, body, body.logprobs),
    )
    return await respond(request, ask, bool(body.stream_options and body.stream_options.include_usage))
