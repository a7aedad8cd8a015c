"""Build the InferenceRequest of what a caller's dialect says, its headers (the x-aio ones say what the caller wants of
routing) and what the guard found out."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import msgspec
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import ApiError, as_api_error, bad_request
from gateway.base.identity import TraceContext, trace_context
from gateway.base.inference_request import (
    CALLER,
    NO_OPTIONS,
    SERVICE_TIERS,
    SLO_CLASSES,
    TIER_DEFAULTS,
    CacheMode,
    Caller,
    InferenceRequest,
    PrivateMark,
    RoutingOptions,
    SloName,
    slo_class,
)
from gateway.base.logs import LOG_CONTEXT, LogContext
from gateway.base.numbers import number, whole_number
from gateway.edge.asgi import HttpRequest
from gateway.inference.api.parsing import EXTRA, note_ignored, off_loop, read_and_build
from gateway.inference.clients import recognised
from gateway.inference.service import Serving, serving_of
from inference_core.protocol import SamplingParams
from tiers.catalog.consent import ALL, Consent
from tiers.conversation import ReadRequest, Turn
from tiers.dialects.chat_request import PRIORITY_OF_SERVICE_TIER, read_chat, read_completion
from tiers.dialects.chat_schemas import ChatRequest, CompletionRequest
from tiers.dialects.decoding import FieldReader
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.errors import HEADER, BadRequestError, CallerCredential
from tiers.tier import GenerationRequest

Asked = TypeVar("Asked", bound=msgspec.Struct)
Body = TypeVar("Body", ChatRequest, CompletionRequest, ResponsesRequest)

MAX_LOGPROBS = 1 << 17
"""Log-probabilities of drawn tokens in one answer of several choices: about 8 MB of JSON."""
UNSTATED_TOKENS = 4096
"""What a choice without a limit of its own counts as."""
_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")

CONSENT, PRIVATE = "x-aio-consent", "x-aio-private"
_OR_NAMED = f", or one of {', '.join(QUALITY_SETTINGS)}"
CACHE_MODES: tuple[CacheMode, ...] = get_args(CacheMode)


def routing_options(headers: Mapping[str, str], tiers: int) -> RoutingOptions:
    """Read and check the headers. Raises `ApiError` 400 naming the header, its value and what is allowed."""
    if _OPTIONS.keys().isdisjoint(headers):
        return NO_OPTIONS
    options = {option: read(headers, tiers) for name, (option, read) in _OPTIONS.items() if name in headers}
    if options.get("private") is not None:
        options["consent"] = options.get("consent", ALL).narrowed(Consent(local=True))
    return RoutingOptions(**options)


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
    if headers["x-aio-cache"] == "exact":
        message = "Invalid header x-aio-cache: exact is gone; use shares answers of equal requests alone."
        raise bad_request(message, "x-aio-cache", "invalid_value")
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
    """What is known of a request before its body is read; on a socket one connection brings many of them."""

    request_id: str
    arrival: float
    """Arrival in monotonic seconds."""
    caller: Caller
    headers: Mapping[str, str]
    extra: dict[str, Any] = {}
    """Fields of its body that some servers know, once that is read."""


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
    return request_of(serving, head, _read(read_chat, body))


def completion_request(serving: Serving, head: RequestHead, body: CompletionRequest) -> InferenceRequest:
    """The request of a text completion. Raises `ApiError` 400 that names the parameter."""
    return request_of(serving, head, _read(read_completion, body))


def responses_request(serving: Serving, head: RequestHead, body: ResponsesRequest) -> InferenceRequest:
    """The request of items alone. Raises `ApiError` 400 that names the parameter."""
    return request_of(serving, head, _read(read_responses, body))


def _read(reader: Callable[[Body], ReadRequest], body: Body) -> ReadRequest:
    try:
        return reader(body)
    except BadRequestError as error:
        raise as_api_error(error) from None


async def read_request(
    request: HttpRequest, fields: FieldReader[Asked], read: Callable[[Asked], ReadRequest]
) -> tuple[Asked, InferenceRequest]:
    """Return the body of a request, and what its dialect's `read` says that it asks for; a header of the answer names
    what `read` leaves out. Raises `ApiError`."""
    serving = serving_of(request)

    async def build(body: Asked) -> tuple[InferenceRequest, tuple[str, ...]]:
        head = received(request)

        def work() -> tuple[InferenceRequest, tuple[str, ...]]:
            asked = read(body)
            return request_of(serving, head, asked), asked.ignored

        return await off_loop(serving, head.caller, await request.body(), work)

    body, (built, ignored) = await read_and_build(serving, request, fields, build)
    note_ignored(request, ignored)
    return body, built


def request_of(serving: Serving, head: RequestHead, read: ReadRequest) -> InferenceRequest:
    """The request that a caller made, whatever its dialect. Raises `ApiError` 400 that names the parameter."""
    try:
        return _request_of(serving, head, read)
    except ApiError as error:
        raise error.located(read.names) from None


def _request_of(serving: Serving, head: RequestHead, read: ReadRequest) -> InferenceRequest:
    caller, served = head.caller, serving.routing.served
    _check_logprobs(read)
    options = routing_options(head.headers, served.strongest)
    wanted = slo_class(options.slo, 1).priority if read.priority is None else read.priority
    priority = max(wanted, caller.priority_ceiling)
    consent = options.consent
    if not (read.store and serving.settings.store_texts):
        consent = consent.narrowed(Consent(reuse=False))
    return InferenceRequest(
        api="completion" if read.turns is None else "chat",
        requested_model=served.unaliased(read.model, caller),
        generation=_generation(head, read, priority),
        created_at=time.time(),
        prompts=read.prompts,
        usual_max_tokens=read.is_usual_limit,
        best_of=read.best_of,
        unset=tuple([name for name in TIER_DEFAULTS if name not in read.sampling]) if read.sampling else TIER_DEFAULTS,
        stream=read.stream,
        caller=caller,
        own_consent=consent,
        private=options.private,
        service_tier=_served_tier(read.service_tier, priority),
        metadata=read.metadata,
        user=read.user,
        client=None if read.turns is None else recognised(head.headers, read.metadata, read.turns),
        options=options,
        ruled_headers=None if served.rules is None else ruled_headers(serving, head),
        trace=_traced(serving, head),
        names=read.names,
    )


def _generation(head: RequestHead, read: ReadRequest, priority: int) -> GenerationRequest:
    """What a tier is asked for."""
    passed, ceiling = read.passed, head.caller.priority_ceiling
    if read.service_tier is not None and PRIORITY_OF_SERVICE_TIER[read.service_tier] < ceiling:
        # The most urgent class that the caller's key may ask for is that of a provider too.
        passed = passed | {"service_tier": SERVICE_TIERS[ceiling]}
    return GenerationRequest(
        request_id=head.request_id,
        arrival=head.arrival,
        messages=read.turns,
        sampling=SamplingParams(logprobs=read.logprobs, grammar=read.grammar, **read.sampling),
        max_tokens=read.max_tokens,
        stop=read.stop,
        n=read.n,
        include_stop=read.include_stop,
        echo=read.echo,
        priority=priority,
        tooling=read.tooling,
        response_format=read.response_format,
        reasoning_effort=read.reasoning_effort,
        reasoning_budget=read.reasoning_budget,
        template_variables=read.template_variables,
        given=read.explicit,
        passed=passed,
        extra=head.extra | read.extra if read.extra else head.extra,
        opaque=read.opaque,
        wants_opaque=read.wants_opaque,
    )


def _served_tier(asked: str | None, priority: int) -> str | None:
    """What `service_tier` of an answer says: the class it was served in, which a key's ceiling may have lowered; None
    where the caller did not ask."""
    if asked is None or PRIORITY_OF_SERVICE_TIER[asked] == priority:
        return "default" if asked == "auto" else asked
    return SERVICE_TIERS[priority]


def _check_logprobs(read: ReadRequest) -> None:
    """Raises `ApiError` 400 if the log-probabilities of so many choices are too many; one choice may have as many as
    fit its context."""
    if read.logprobs is None:
        return
    choices = len(read.prompts or (None,)) * (read.best_of or read.n)
    tokens, shown = UNSTATED_TOKENS if read.max_tokens is None else read.max_tokens, 1 + read.logprobs
    if choices > 1 and choices * tokens * shown > MAX_LOGPROBS:
        raise bad_request(
            f"{choices} choices of up to {tokens} tokens with {shown} log-probabilities each are too many: an answer "
            f"of several choices may have {MAX_LOGPROBS}. Ask for fewer choices, tokens or log-probabilities.",
            "top_logprobs",
            "answer_too_large",
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
