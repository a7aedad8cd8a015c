"""Build the InferenceRequest of each endpoint from its checked body, its headers (the x-aio ones say what the caller
wants of routing) and what the guard found out."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal, get_args

import msgspec
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import bad_request
from gateway.base.identity import TraceContext, trace_context
from gateway.base.inference_request import (
    CALLER,
    NO_OPTIONS,
    SLO_CLASSES,
    CacheMode,
    Caller,
    InferenceRequest,
    PrivateMark,
    RoutingOptions,
    SloName,
)
from gateway.base.logs import LOG_CONTEXT, LogContext
from gateway.base.numbers import number, whole_number
from gateway.inference.api.constraints import format_of, template_variables_of, tooling_of
from gateway.inference.api.parsing import (
    EXTRA,
    check_chat,
    check_completion,
    explicit_fields,
    priority_of,
    provider_fields,
    sampling_params,
    served_tier,
    stops_of,
    token_limit,
    unset_fields,
)
from gateway.inference.api.schemas import ChatRequest, CompletionRequest
from gateway.inference.clients import recognised
from gateway.inference.service import Serving
from inference_core.protocol import SamplingParams
from tiers.catalog.consent import ALL, Consent
from tiers.conversation import Turn
from tiers.dialects.rules import SUFFIX, media_fields
from tiers.errors import HEADER, CallerCredential
from tiers.tier import GenerationRequest

_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")

CONSENT, PRIVATE = "x-aio-consent", "x-aio-private"
_OR_NAMED = f", or one of {', '.join(QUALITY_SETTINGS)}"
CACHE_MODES: tuple[CacheMode, ...] = get_args(CacheMode)


def routing_options(headers: Mapping[str, str], tiers: int) -> RoutingOptions:
    """Read and check the headers. Raises `ApiError` 400 naming the header, its value and what is allowed."""
    if _OPTIONS.keys().isdisjoint(headers):
        return NO_OPTIONS
    given = {option: read(headers, tiers) for name, (option, read) in _OPTIONS.items() if name in headers}
    if given.get("private") is not None:
        given["consent"] = given.get("consent", ALL).narrowed(Consent(local=True))
    return RoutingOptions(**given)


def _quality(headers: Mapping[str, str], tiers: int) -> float:
    value = headers["x-aio-quality"]
    named = QUALITY_SETTINGS.get(value)
    return number(value, "x-aio-quality", 0, 1, _OR_NAMED) if named is None else named


def _deadline_seconds(headers: Mapping[str, str], tiers: int) -> float:
    return number(headers["x-aio-deadline-ms"], "x-aio-deadline-ms", 1, 86_400_000) / 1e3


def _min_tier(headers: Mapping[str, str], tiers: int) -> int:
    return whole_number(headers["x-aio-min-tier"], "x-aio-min-tier", 1, tiers)


def _max_cost_usd(headers: Mapping[str, str], tiers: int) -> float:
    return number(headers["x-aio-max-cost"], "x-aio-max-cost", 0, 1e6)


def _conversation(headers: Mapping[str, str], tiers: int) -> str:
    value = headers["x-aio-conversation"]
    if _CONVERSATION.match(value):
        return value
    raise bad_request(
        f"Invalid header x-aio-conversation: {value[:64]!r}; allowed are 1 to 128 letters, digits, dots, colons, "
        "underscores and hyphens.",
        "x-aio-conversation",
        "invalid_value",
    )


def _slo(headers: Mapping[str, str], tiers: int) -> SloName:
    return SLO_CLASSES[_one_of(headers, "x-aio-slo", SLO_CLASSES)].name


def _cache(headers: Mapping[str, str], tiers: int) -> str:
    return _one_of(headers, "x-aio-cache", CACHE_MODES)


def _one_of(headers: Mapping[str, str], name: str, allowed: Collection[str]) -> str:
    value = headers[name]
    if value in allowed:
        return value
    raise bad_request(
        f"Invalid header {name}: {value[:64]!r}; allowed are {', '.join(allowed)}.", name, "invalid_value"
    )


def _stated_consent(headers: Mapping[str, str], tiers: int) -> Consent:
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


def _private(headers: Mapping[str, str], tiers: int) -> PrivateMark | None:
    values = headers.getall(PRIVATE) if isinstance(headers, Headers) else [headers[PRIVATE]]
    for value in values:
        if value not in ("true", "false"):
            raise bad_request(
                f"Invalid header {PRIVATE}: {value[:64]!r}; allowed are true and false.", PRIVATE, "invalid_value"
            )
    return PrivateMark("asked for", PRIVATE) if "true" in values else None


def _credential(headers: Mapping[str, str], tiers: int) -> CallerCredential:
    try:
        return CallerCredential(headers[HEADER].strip())
    except ValueError as error:
        raise bad_request(f"Invalid header {HEADER}: {error}.", HEADER, "invalid_value") from None


def _yes_or_no(name: str, headers: Mapping[str, str], tiers: int, *, yes: str = "true", no: str = "false") -> bool:
    value = headers[name]
    if value in (yes, no):
        return value == yes
    raise bad_request(f"Invalid header {name}: {value[:64]!r}; allowed are {yes} and {no}.", name, "invalid_value")


_OPTIONS: dict[str, tuple[str, Callable[[Mapping[str, str], int], Any]]] = {
    "x-aio-deadline-ms": ("deadline_seconds", _deadline_seconds),
    CONSENT: ("consent", _stated_consent),
    PRIVATE: ("private", _private),
    "x-aio-quality": ("quality_target", _quality),
    "x-aio-min-tier": ("min_tier", _min_tier),
    "x-aio-max-cost": ("max_cost_usd", _max_cost_usd),
    "x-aio-conversation": ("conversation", _conversation),
    "x-aio-slo": ("slo", _slo),
    "x-aio-cache": ("cache", _cache),
    "x-aio-agree": ("agree", partial(_yes_or_no, "x-aio-agree")),
    "x-aio-may-wait": ("may_wait", partial(_yes_or_no, "x-aio-may-wait")),
    "x-aio-continue": ("continues", partial(_yes_or_no, "x-aio-continue", yes="auto", no="off")),
    HEADER: ("credential", _credential),
}
"""By header: the option that it sets, and what reads it."""


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request before its body is read; on a socket one connection brings many of them.

    `arrival`: monotonic seconds. `extra`: fields of its body that some servers know, once that is read.
    """

    request_id: str
    arrival: float
    caller: Caller
    headers: Mapping[str, str]
    extra: dict[str, Any] = {}


def received(connection: ASGIConnection[Any, Any, Any, Any]) -> RequestHead:
    """What the guard found out about a request."""
    state = connection.scope["state"]
    return RequestHead(
        request_id=state["request_id"],
        arrival=state["arrival"],
        caller=state[CALLER],
        headers=state["headers"],
        extra=state.get(EXTRA) or {},
    )


def chat_request(serving: Serving, head: RequestHead, body: ChatRequest) -> InferenceRequest:
    """The request of a chat. Raises `ApiError` 400 that names the parameter."""
    messages = check_chat(body)
    return _request_of(
        serving,
        head,
        body,
        {
            "sampling": sampling_params(body, (body.top_logprobs or 0) if body.logprobs else None),
            "passed": provider_fields(body, head.caller.priority_ceiling),
            "extra": head.extra | (media_fields(body.modalities, body.audio) if body.modalities or body.audio else {}),
            "messages": messages,
            "tooling": tooling_of(body),
            "response_format": format_of(body.response_format),
            "reasoning_effort": body.reasoning_effort,
            "reasoning_budget": body.thinking_token_budget,
            "template_variables": template_variables_of(body),
        },
        store=body.store is not False,
        api="chat",
        metadata=body.metadata,
        user=body.user or body.safety_identifier,
        client=recognised(head.headers, body.metadata, messages),
    )


def completion_request(serving: Serving, head: RequestHead, body: CompletionRequest) -> InferenceRequest:
    """The request of a text completion. Raises `ApiError` 400 that names the parameter."""
    prompts = check_completion(body)
    return _request_of(
        serving,
        head,
        body,
        {
            "sampling": sampling_params(body, body.logprobs),
            "passed": provider_fields(body),
            "extra": head.extra | ({SUFFIX: body.suffix} if body.suffix else {}),
            "echo": bool(body.echo),
        },
        store=True,
        api="completion",
        prompts=prompts,
        usual_max_tokens=body.max_tokens is None,
        best_of=body.best_of,
        user=body.user,
    )


def _request_of(
    serving: Serving,
    head: RequestHead,
    body: ChatRequest | CompletionRequest,
    generation: dict[str, Any],
    *,
    store: bool,
    **own: Any,
) -> InferenceRequest:
    """The request of a `body`: what both kinds have, with what one kind asks of a tier (`generation`) and of the
    gateway (`own`). `store`: the body does not refuse to be stored."""
    caller, served = head.caller, serving.routing.served
    options = routing_options(head.headers, served.strongest)
    priority = max(priority_of(body, options.slo), caller.priority_ceiling)
    consent = options.consent
    if not (store and serving.settings.store_texts):
        consent = consent.narrowed(Consent(reuse=False))
    return InferenceRequest(
        requested_model=served.unaliased(body.model, caller),
        generation=GenerationRequest(
            request_id=head.request_id,
            arrival=head.arrival,
            given=explicit_fields(body),
            max_tokens=token_limit(body),
            stop=stops_of(body),
            n=body.n or 1,
            include_stop=bool(body.include_stop_str_in_output),
            priority=priority,
            **generation,
        ),
        created_at=time.time(),
        unset=unset_fields(body),
        stream=bool(body.stream),
        caller=caller,
        own_consent=consent,
        private=options.private,
        service_tier=served_tier(body.service_tier, priority) if isinstance(body, ChatRequest) else None,
        options=options,
        ruled_headers=None if served.rules is None else ruled_headers(serving, head),
        trace=_traced(serving, head),
        **own,
    )


def unanswered_request(
    head: RequestHead,
    model: str,
    *,
    messages: list[Turn] | None = None,
    priority: int = 1,
    max_tokens: int | None = None,
    options: RoutingOptions = NO_OPTIONS,
    api: Literal["chat", "completion"] = "completion",
    **own: Any,
) -> InferenceRequest:
    """The request of an endpoint that reads a text, or routes it, and generates none: its caller's limits apply."""
    return InferenceRequest(
        api=api,
        requested_model=model,
        generation=GenerationRequest(
            request_id=head.request_id,
            sampling=SamplingParams(),
            arrival=head.arrival,
            messages=messages,
            max_tokens=max_tokens,
            priority=max(priority, head.caller.priority_ceiling),
        ),
        created_at=time.time(),
        caller=head.caller,
        options=options,
        own_consent=options.consent,
        private=options.private,
        **own,
    )


def ruled_headers(serving: Serving, head: RequestHead) -> dict[str, str] | None:
    """The headers that the catalogue's rules look at; None without any."""
    rules = serving.routing.served.rules
    if rules is None or not rules.headers:
        return None
    return {name: value for name in rules.headers if (value := head.headers.get(name)) is not None}


def _traced(serving: Serving, head: RequestHead) -> TraceContext | None:
    """The trace of the request, which log lines name from now on."""
    trace = trace_context(head.headers, serving.settings.traced_share, parent_based=serving.settings.trace_parent_based)
    LOG_CONTEXT.set(LogContext(head.request_id, "" if trace is None else f"{trace.trace_id:032x}"))
    return trace
