"""`POST /v1/messages/count_tokens`: how long a prompt is for the tier that would answer it."""

from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.base.requests.inference_request import InferenceRequest
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.messages.as_chat import chat_of
from gateway.inference.api.messages.errors import STATUSES, MessagesErrorEnvelope
from gateway.inference.api.messages.schemas import CountTokensRequest, ShownCountTokens
from gateway.inference.api.reading.build_request import chat_request, received
from gateway.inference.api.reading.ignored_fields import FieldReader
from gateway.inference.api.reading.parsing import read_fields
from gateway.inference.api.writing.sending import ignored_header
from gateway.inference.routing.router import RoutingService
from gateway.inference.serving import serving_of


class TokenCount(msgspec.Struct, frozen=True):
    """The tokens of the whole prompt, tools included."""

    input_tokens: int


COUNT_TOKENS = FieldReader("/v1/messages/count_tokens", CountTokensRequest)


@post(
    "/messages/count_tokens",
    status_code=200,
    operation_class=describe(ShownCountTokens, TokenCount, envelope=MessagesErrorEnvelope, errors=STATUSES),
    summary="Count the tokens of a conversation in Anthropic's format",
)
async def count_tokens(request: HttpRequest) -> Response[Any]:
    """By the tokeniser of the tier that would answer; an estimate for one that runs elsewhere. Nothing is generated or
    billed. It counts as a request against the limits of the key, and no tokens against them."""
    body = await read_fields(request, COUNT_TOKENS)
    serving, given = serving_of(request), received(request)
    chat = chat_of(body)
    try:
        inference_request = chat_request(serving, given, chat.request)
        async with serving.service.reading(inference_request) as admission:
            inference_request = await serving.service.marked(inference_request)
            tier = await _tier(serving.routing, inference_request)
            served = serving.routing.served.seen_by(inference_request.requested_model)
            read = inference_request.generations(served.spec(tier))[0]
            count = served.tier(tier).count_prompt_tokens
            tokens = await serving.routing.threads.run(given.caller.tenant, lambda: count(read))
            admission.settle(0.0, 0)
    except ApiError as error:
        raise chat.renamed(error) from None
    ignored = {name.decode(): value.decode() for name, value in ignored_header(request)}
    headers = admission.headers | {"request-id": given.request_id} | ignored
    return Response(TokenCount(tokens), media_type="application/json", headers=headers)


async def _tier(routing: RoutingService, request: InferenceRequest) -> int:
    """The tier that would answer; the strongest where no context is long enough. Raises `ApiError`."""
    await routing.prepare(request)
    try:
        return routing.route(request).tier
    except ApiError as error:
        if error.body.code != "context_length_exceeded":
            raise
        return routing.served.pinned_tier(request.requested_model) or routing.served.strongest
