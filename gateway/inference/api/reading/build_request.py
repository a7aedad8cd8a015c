"""Build the InferenceRequest of each endpoint from its checked body, its headers and what the guard found out."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.connection import ASGIConnection

from gateway.base.logs.log_context import LOG_CONTEXT, LogContext
from gateway.base.requests.caller import CALLER, Caller
from gateway.base.requests.identity import TraceContext, trace_context
from gateway.base.requests.inference_request import InferenceRequest, Prompt
from gateway.inference.api.reading.aio_headers import RoutingHeaders, routing_headers
from gateway.inference.api.reading.constraints import format_of, template_variables_of, tooling_of
from gateway.inference.api.reading.parsing import (
    EXTRA,
    check_chat,
    check_completion,
    given_of,
    passed_of,
    priority_of,
    sampling_params,
    served_tier,
    stops_of,
    token_limit,
    unset_of,
)
from gateway.inference.api.reading.schemas import ChatRequest, CompletionRequest
from gateway.inference.serving import Serving
from gateway.inference.sessions.clients import recognised
from inference_core.protocol import SamplingParams
from tiers.consent import Consent
from tiers.tier import ChatMessage, GenerationRequest


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request before its body is read; on a socket one connection brings many of them.

    `arrival`: monotonic seconds. `extra`: fields of its body that some servers know, once that is read.
    """

    request_id: str
    arrival: float
    caller: Caller
    headers: Mapping[str, str]
    extra: dict[str, Any] = {}


def received(connection: ASGIConnection[Any, Any, Any, Any]) -> Received:
    """What the guard found out about a request."""
    state = connection.scope["state"]
    return Received(
        request_id=state["request_id"],
        arrival=state["arrival"],
        caller=state[CALLER],
        headers=state["headers"],
        extra=state.get(EXTRA) or {},
    )


def chat_request(serving: Serving, head: Received, body: ChatRequest) -> InferenceRequest:
    """The request of a chat. Raises `ApiError` 400 that names the parameter."""
    messages = check_chat(body)
    caller, routing = head.caller, serving.routing
    model = routing.served.unaliased(body.model, caller)
    headers = routing_headers(head.headers, routing.served.strongest)
    sampling = sampling_params(body, (body.top_logprobs or 0) if body.logprobs else None)
    priority = max(priority_of(body, headers.slo), caller.priority_ceiling)
    return InferenceRequest(
        api="chat",
        requested_model=model,
        generation=GenerationRequest(
            request_id=head.request_id,
            sampling=sampling,
            arrival=head.arrival,
            given=given_of(body),
            passed=passed_of(body, caller.priority_ceiling),
            extra=head.extra,
            messages=messages,
            max_tokens=token_limit(body),
            stop=stops_of(body),
            tooling=tooling_of(body),
            response_format=format_of(body.response_format),
            n=body.n or 1,
            include_stop=bool(body.include_stop_str_in_output),
            reasoning_effort=body.reasoning_effort,
            reasoning_budget=body.thinking_token_budget,
            template_variables=template_variables_of(body),
            priority=priority,
        ),
        created_at=time.time(),
        unset=unset_of(body),
        stream=bool(body.stream),
        caller=caller,
        own_consent=_consent(serving, headers, store=body.store is not False),
        private=headers.private,
        service_tier=served_tier(body.service_tier, priority),
        metadata=body.metadata,
        quality_target=headers.quality_target,
        min_tier=headers.min_tier,
        max_cost_usd=_most_usd(headers, head.caller),
        deadline_seconds=headers.deadline_seconds,
        user=body.user or body.safety_identifier,
        conversation=headers.conversation,
        client=recognised(head.headers, body.metadata, messages),
        slo=headers.slo,
        cache=headers.cache,
        agree=headers.agree,
        may_wait=headers.may_wait,
        credential=headers.credential,
        ruled_headers=None if routing.served.rules is None else ruled_headers(serving, head),
        trace=_traced(serving, head),
    )


def completion_request(serving: Serving, head: Received, body: CompletionRequest) -> InferenceRequest:
    """The request of a text completion. Raises `ApiError` 400 that names the parameter."""
    prompts = check_completion(body)
    caller, routing = head.caller, serving.routing
    model = routing.served.unaliased(body.model, caller)
    headers = routing_headers(head.headers, routing.served.strongest)
    return InferenceRequest(
        api="completion",
        requested_model=model,
        generation=GenerationRequest(
            request_id=head.request_id,
            sampling=sampling_params(body, body.logprobs),
            arrival=head.arrival,
            given=given_of(body),
            passed=passed_of(body),
            extra=head.extra,
            max_tokens=token_limit(body),
            stop=stops_of(body),
            n=body.n or 1,
            echo=bool(body.echo),
            include_stop=bool(body.include_stop_str_in_output),
            priority=max(priority_of(body, headers.slo), caller.priority_ceiling),
        ),
        created_at=time.time(),
        unset=unset_of(body),
        prompts=prompts,
        stream=bool(body.stream),
        caller=caller,
        own_consent=_consent(serving, headers, store=True),
        private=headers.private,
        usual_max_tokens=body.max_tokens is None,
        best_of=body.best_of,
        quality_target=headers.quality_target,
        min_tier=headers.min_tier,
        max_cost_usd=_most_usd(headers, head.caller),
        deadline_seconds=headers.deadline_seconds,
        user=body.user,
        conversation=headers.conversation,
        slo=headers.slo,
        cache=headers.cache,
        agree=headers.agree,
        may_wait=headers.may_wait,
        credential=headers.credential,
        ruled_headers=None if routing.served.rules is None else ruled_headers(serving, head),
        trace=_traced(serving, head),
    )


def reading_request(
    head: Received,
    model: str,
    *,
    messages: list[ChatMessage] | None = None,
    prompts: list[Prompt] | None = None,
    priority: int = 1,
    metadata: dict[str, str] | None = None,
) -> InferenceRequest:
    """The request of an endpoint that reads a text and generates none: its caller's limits apply to it."""
    return InferenceRequest(
        api="completion",
        requested_model=model,
        generation=GenerationRequest(
            request_id=head.request_id,
            sampling=SamplingParams(),
            arrival=head.arrival,
            messages=messages,
            priority=max(priority, head.caller.priority_ceiling),
        ),
        created_at=time.time(),
        prompts=prompts,
        caller=head.caller,
        metadata=metadata,
    )


def ruled_headers(serving: Serving, head: Received) -> dict[str, str] | None:
    """The headers that the catalogue's rules look at; None without any."""
    rules = serving.routing.served.rules
    if rules is None or not rules.headers:
        return None
    return {name: value for name in rules.headers if (value := head.headers.get(name)) is not None}


def dry_run_request(
    head: Received,
    headers: RoutingHeaders,
    model: str,
    messages: list[ChatMessage],
    max_tokens: int | None,
    metadata: dict[str, str] | None = None,
    ruled: dict[str, str] | None = None,
) -> InferenceRequest:
    """The request of a dry run of routing."""
    return InferenceRequest(
        api="chat",
        requested_model=model,
        generation=GenerationRequest(
            request_id=head.request_id,
            sampling=SamplingParams(),
            arrival=head.arrival,
            messages=messages,
            max_tokens=max_tokens,
        ),
        created_at=time.time(),
        caller=head.caller,
        metadata=metadata,
        ruled_headers=ruled,
        quality_target=headers.quality_target,
        min_tier=headers.min_tier,
        max_cost_usd=_most_usd(headers, head.caller),
        deadline_seconds=headers.deadline_seconds,
        conversation=headers.conversation,
        client=recognised(head.headers, metadata, messages),
        slo=headers.slo,
        cache=headers.cache,
        agree=headers.agree,
        credential=headers.credential,
        own_consent=headers.consent,
        private=headers.private,
    )


def _consent(serving: Serving, headers: RoutingHeaders, *, store: bool) -> Consent:
    """What a request itself consents to; `store`: its body does not refuse to be stored."""
    return headers.consent if store and serving.settings.store_texts else headers.consent.narrowed(Consent(reuse=False))


def _most_usd(headers: RoutingHeaders, caller: Caller) -> float | None:
    """The most that a request may be predicted to cost: by itself and by its key."""
    asked, allowed = headers.max_cost_usd, caller.max_cost_usd
    if asked is None or allowed is None:
        return allowed if asked is None else asked
    return min(asked, allowed)


def _traced(serving: Serving, head: Received) -> TraceContext | None:
    """The trace of the request, which log lines name from now on."""
    trace = trace_context(head.headers, serving.settings.traced_share, parent_based=serving.settings.trace_parent_based)
    LOG_CONTEXT.set(LogContext(head.request_id, "" if trace is None else f"{trace.trace_id:032x}"))
    return trace
