"""`POST /v1/route`: the decision that a request would get, without answering it."""

import time
from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from classifier.decision import Decision
from gateway.base.errors import bad_request
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.aio_headers import routing_headers
from gateway.inference.api.reading.build_request import dry_run_request, received, ruled_headers
from gateway.inference.api.reading.chat_turns import turns_of
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.api.reading.schemas import Message, Metadata, PositiveInt
from gateway.inference.serving import serving_of
from tiers.tier import ChatMessage


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input of the decision: a conversation or a prompt, the requested model, the token limit, the tags that rules may
    look at; wishes go in x-aio headers."""

    model: str = "auto"
    messages: list[Message] | None = None
    prompt: str | None = None
    max_tokens: PositiveInt | None = None
    metadata: Metadata | None = None


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """A decision and its cost: `tier` and `model` that would answer, `cpu_ms` of CPU time spent on it.

    `costs_estimated`: the tiers whose price is an estimate.
    """

    tier: int
    model: str
    reason: str
    p_ok: list[float]
    costs_usd: list[float]
    costs_estimated: list[int]
    cpu_ms: float
    decision: Decision


@post("/route", status_code=200, operation_class=describe(RouteRequest, Routing), summary="Dry-run a routing decision")
async def route(request: HttpRequest) -> Response[Any]:
    """Tier, the probabilities of all tiers, predicted costs, and why; nothing is generated, billed or recorded. It
    counts against the limits of the key, with the tokens of its prompt."""
    body = await read_body(request, RouteRequest)
    serving = serving_of(request)
    head = received(request)
    headers = routing_headers(head.headers, serving.routing.served.strongest)
    model = serving.routing.served.unaliased(body.model, head.caller)
    inference_request = dry_run_request(
        head, headers, model, _messages(body), body.max_tokens, body.metadata, ruled_headers(serving, head)
    )
    async with serving.service.reading(inference_request) as admission:
        began = time.thread_time()
        inference_request = await serving.service.marked(inference_request)
        await serving.routing.prepare(inference_request)
        decision = serving.routing.route(inference_request)
        if serving.service.agreements is not None:
            decision = serving.service.agreements.told(inference_request, decision)
        cpu_ms = (time.thread_time() - began) * 1e3
    return Response(
        Routing(
            tier=decision.tier,
            model=serving.routing.served.chosen(decision).model,
            reason=decision.reason,
            p_ok=decision.inputs.prediction.p_ok,
            costs_usd=decision.inputs.costs,
            costs_estimated=[spec.number for spec in serving.routing.served.catalog.tiers if spec.price.estimated],
            cpu_ms=cpu_ms,
            decision=decision,
        ),
        media_type="application/json",
        headers=admission.headers,
    )


def _messages(body: RouteRequest) -> list[ChatMessage]:
    if (body.messages is None) == (body.prompt is None):
        raise bad_request("Give either messages or prompt.", "messages", "invalid_value")
    if body.messages is not None:
        return turns_of(body.messages)
    return [ChatMessage(role="user", content=body.prompt or "")]
