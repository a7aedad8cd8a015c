"""Build the InferenceRequest of each endpoint from its checked body, its headers (the x-aio ones say what the caller
wants of routing) and what the guard found out."""

import re
import time
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import bad_request
from gateway.base.identity import TraceContext, trace_context
from gateway.base.inference_request import (
    CALLER,
    SLO_CLASSES,
    CacheMode,
    Caller,
    InferenceRequest,
    PrivateMark,
    Prompt,
    SloName,
)
from gateway.base.logs import LOG_CONTEXT, LogContext
from gateway.base.numbers import number, whole_number
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
from gateway.inference.clients import recognised
from gateway.inference.service import Serving
from inference_core.protocol import SamplingParams
from tiers.consent import ALL, Consent
from tiers.errors import HEADER, CallerCredential
from tiers.tier import ChatMessage, GenerationRequest

_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")

CONSENT, PRIVATE = "x-aio-consent", "x-aio-private"
_OR_NAMED = f", or one of {', '.join(QUALITY_SETTINGS)}"
CACHE_MODES: tuple[CacheMode, ...] = get_args(CacheMode)


class RoutingHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """`x-aio-quality` (a number, or a named setting), `x-aio-min-tier`, `x-aio-max-cost` (US dollars),
    `x-aio-deadline-ms` (to the first token), `x-aio-conversation` (the caller's own id of the conversation),
    `x-aio-slo` (what it is for: `SLO_CLASSES`),
    `x-aio-consent` (answer: to be used for its answer alone, local: to be seen by local tiers alone, or both),
    `x-aio-private` (true: the same as local, for the rest of its session too; false: nothing),
    `x-aio-cache` (use: of sampled answers too, refresh: a new answer, exact: of an equal request only, off),
    `x-aio-agree` (true, false: whether cheap tiers answer at once and are compared),
    `x-aio-may-wait` (true, false: whether the first byte of a stream may wait for that, where it pays),
    `x-aio-upstream-authorization` (the caller's own credential, for a tier that asks for it)."""

    quality_target: float | None = None
    min_tier: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    conversation: str | None = None
    slo: SloName | None = None
    cache: CacheMode | None = None
    agree: bool | None = None
    may_wait: bool | None = None
    consent: Consent = ALL
    private: PrivateMark | None = None
    credential: CallerCredential | None = None


_NAMES = frozenset({
    "x-aio-quality", "x-aio-min-tier", "x-aio-max-cost", "x-aio-deadline-ms", "x-aio-conversation", "x-aio-slo",
    CONSENT, PRIVATE, "x-aio-cache", "x-aio-agree", "x-aio-may-wait", HEADER,
})  # fmt: skip
_USUAL = RoutingHeaders()


def routing_headers(headers: Mapping[str, str], tiers: int) -> RoutingHeaders:
    """Read and check the headers. Raises `ApiError` 400 naming the header, its value and what is allowed."""
    if _NAMES.isdisjoint(headers):
        return _USUAL
    deadline_ms = _number(headers, "x-aio-deadline-ms", 1, 86_400_000)
    min_tier, consent, private = headers.get("x-aio-min-tier"), _stated_consent(headers), _private(headers)
    return RoutingHeaders(
        quality_target=_quality(headers),
        min_tier=None if min_tier is None else whole_number(min_tier, "x-aio-min-tier", 1, tiers),
        max_cost_usd=_number(headers, "x-aio-max-cost", 0, 1e6),
        deadline_seconds=None if deadline_ms is None else deadline_ms / 1e3,
        conversation=_conversation(headers.get("x-aio-conversation")),
        slo=_slo(headers.get("x-aio-slo")),
        cache=_cache(headers.get("x-aio-cache")),
        agree=_yes_or_no(headers, "x-aio-agree"),
        may_wait=_yes_or_no(headers, "x-aio-may-wait"),
        consent=consent if private is None else consent.narrowed(Consent(local=True)),
        private=private,
        credential=_credential(headers),
    )


def _quality(headers: Mapping[str, str]) -> float | None:
    value = headers.get("x-aio-quality")
    if value is None:
        return None
    named = QUALITY_SETTINGS.get(value)
    return number(value, "x-aio-quality", 0, 1, _OR_NAMED) if named is None else named


def _number(headers: Mapping[str, str], name: str, least: float, most: float) -> float | None:
    value = headers.get(name)
    return None if value is None else number(value, name, least, most)


def _conversation(value: str | None) -> str | None:
    if value is None or _CONVERSATION.match(value):
        return value
    raise bad_request(
        f"Invalid header x-aio-conversation: {value[:64]!r}; allowed are 1 to 128 letters, digits, dots, colons, "
        "underscores and hyphens.",
        "x-aio-conversation",
        "invalid_value",
    )


def _slo(value: str | None) -> SloName | None:
    if value is None:
        return None
    slo = SLO_CLASSES.get(value)
    if slo is None:
        allowed = ", ".join(SLO_CLASSES)
        raise bad_request(
            f"Invalid header x-aio-slo: {value[:64]!r}; allowed are {allowed}.", "x-aio-slo", "invalid_value"
        )
    return slo.name


def _stated_consent(headers: Mapping[str, str]) -> Consent:
    if CONSENT not in headers:
        return ALL
    # Of several headers each one binds.
    value = ",".join(headers.getall(CONSENT)) if isinstance(headers, Headers) else headers[CONSENT]
    words = {word.strip() for word in value.split(",")}
    if words <= {"answer", "local"}:
        return Consent(local="local" in words, reuse="answer" not in words)
    raise bad_request(
        f"Invalid header {CONSENT}: {value[:64]!r}; allowed are answer, local, and both with a comma between them.",
        CONSENT,
        "invalid_value",
    )


def _private(headers: Mapping[str, str]) -> PrivateMark | None:
    if PRIVATE not in headers:
        return None
    values = headers.getall(PRIVATE) if isinstance(headers, Headers) else [headers[PRIVATE]]
    for value in values:
        if value not in ("true", "false"):
            raise bad_request(
                f"Invalid header {PRIVATE}: {value[:64]!r}; allowed are true and false.", PRIVATE, "invalid_value"
            )
    return PrivateMark("asked for", PRIVATE) if "true" in values else None


def _credential(headers: Mapping[str, str]) -> CallerCredential | None:
    if HEADER not in headers:
        return None
    try:
        return CallerCredential(headers[HEADER].strip())
    except ValueError as error:
        raise bad_request(f"Invalid header {HEADER}: {error}.", HEADER, "invalid_value") from None


def _cache(value: str | None) -> CacheMode | None:
    if value is None:
        return None
    for wish in CACHE_MODES:
        if value == wish:
            return wish
    raise bad_request(
        f"Invalid header x-aio-cache: {value[:64]!r}; allowed are {', '.join(CACHE_MODES)}.",
        "x-aio-cache",
        "invalid_value",
    )


def _yes_or_no(headers: Mapping[str, str], name: str) -> bool | None:
    value = headers.get(name)
    if value is None or value in ("true", "false"):
        return None if value is None else value == "true"
    raise bad_request(f"Invalid header {name}: {value[:64]!r}; allowed are true and false.", name, "invalid_value")


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
