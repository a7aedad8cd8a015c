"""`POST /v1/completions`: continuing raw text or token ids, without a chat template."""

from litestar.types import ASGIApp

from gateway.api.access.guard import InferenceRoute
from gateway.api.inference.answers import CompletionAnswer
from gateway.api.inference.build_request import completion_request, received
from gateway.api.inference.chunks import CompletionsFormat
from gateway.api.inference.ignored_fields import FieldReader
from gateway.api.inference.parsing import read_fields
from gateway.api.inference.schemas import CompletionRequest
from gateway.api.operations import describe
from gateway.api.streaming.sending import respond
from gateway.protocols.http_request import HttpRequest
from gateway.serving import serving_of

COMPLETION = FieldReader("/v1/completions", CompletionRequest)


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
