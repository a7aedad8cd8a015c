"""What the answers of all APIs have in common, and how one came about; chats and text completions as they are sent."""

from abc import ABC, abstractmethod
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gateway.base.errors import ErrorBody, ErrorEnvelope, as_api_error
from gateway.inference.answer import Answer
from gateway.inference.service import Serving
from quality.records.record import CacheUse, continued_from
from tiers.dialects.chat_form import UsageBody
from tiers.dialects.chat_schemas import StreamOptions
from tiers.dialects.chat_writer import (
    AnswerHead,
    ChatWriter,
    CompletionWriter,
    usage_body,
    whole_chat,
    whole_completion,
)
from tiers.dialects.constraints import custom_names
from tiers.tier import Delta, ThoughtEnd

EVENT_STREAM = b"text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Routed(msgspec.Struct, frozen=True):
    """`x_aio`: how the answer came about; on streams it travels with the usage, as the headers left long before."""

    decision_id: str
    tier: int
    model: str
    p_ok: float
    cost_usd: float
    latency_ms: float
    """From the request's arrival to the answer's end (SPEC GW-10)."""
    ttft_ms: float
    """From the request's arrival to its first text; to its end, if it came in one piece or has no text."""
    overhead_ms: float
    classifier: str
    """The version that decided."""
    reason: str
    version: str
    """Hash of all that affects the answers of the tier (`Catalog.tier_fingerprint`): its model's file and arithmetic,
    its server, its policy.
    """
    cache: CacheUse | None = None
    """What the response cache had to do with it; null for nothing."""
    cost_estimated: Literal[True] | UnsetType = UNSET
    """Present, and true, where a tier's price was not given and `cost_usd` rests on an estimate."""
    thought_end: ThoughtEnd | UnsetType = UNSET
    """Why a thought was ended early; present if one was."""
    dropped_turns: int | UnsetType = UNSET
    """How many of the oldest turns were left out for length; present if there are any."""
    target: str | UnsetType = UNSET
    """The target that answered in place of the tier; present if one did."""
    continued_from: list[str] | UnsetType = UNSET
    """The tiers that gave the beginning of the answer and failed; present if it went on at `tier`."""


class Chunks(Protocol):
    """The events of one API's stream."""

    def opening(self) -> bytes:
        """Events before the first delta."""

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""

    def closing(self, answer: Answer) -> bytes:
        """Events after the last delta."""

    def failed(self, error: Exception) -> bytes:
        """The last events of a stream that broke."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last event of an answer that broke; on a socket also of a request that was refused."""

    request: str = ""
    """The caller's own name of the request, on a socket."""
    error: ErrorBody
    usage: UsageBody | None = None
    """The tokens that are billed, if the answer had started."""
    x_aio: Routed | None = None
    """How the part that came was made."""


def head_of(answer: Answer, fingerprint: str) -> AnswerHead:
    """Return what an answer says of itself, whole or in pieces."""
    asked = answer.request.generation
    return AnswerHead(
        id=answer.request.request_id,
        created=int(answer.request.created_at),
        model=answer.tier.model,
        fingerprint=fingerprint,
        service_tier=answer.request.service_tier,
        shows_logprobs=asked.sampling.logprobs is not None,
        custom_tools=frozenset() if asked.tooling is None else custom_names(asked.tooling),
        as_functions=asked.tooling is not None and asked.tooling.as_functions,
    )


class CompletionsChunks:
    """`Chunks` of a chat or of text completions."""

    def __init__(self, answer: Answer, fingerprint: str, shows_usage: bool) -> None:
        writer = ChatWriter if answer.request.api == "chat" else CompletionWriter
        self._writer = writer(head_of(answer, fingerprint), len(answer.choices), shows_usage=shows_usage)
        self._answer = answer
        self.opening, self.piece = self._writer.opening, self._writer.piece

    def closing(self, answer: Answer) -> bytes:
        """The usage, if asked for, and the end mark."""
        return (self._writer.last(answer.usage, routed(answer)) if self._writer.shows_usage else b"") + DONE

    def failed(self, error: Exception) -> bytes:
        """See `Failed`; no end mark follows."""
        if self._answer.record is None:
            return error_event(error)
        billed = usage_body(self._answer.billed)
        failed = Failed(error=as_api_error(error).body, usage=billed, x_aio=routed(self._answer))
        return b"data: %b\n\n" % _encode(failed)


class AnswerFormat(ABC):
    """How an API formats its answers; as OpenAI's APIs do unless it says otherwise."""

    keep_alive = b": keep-alive\n\n"
    """What a stream sends while a token is awaited."""
    stream_type = EVENT_STREAM
    """The content type of a stream."""
    id_headers: tuple[bytes, ...] = (b"x-request-id",)
    """The names of the response headers with the request's id."""

    @abstractmethod
    def whole(self, answer: Answer) -> bytes:
        """The body of a finished answer."""

    @abstractmethod
    def chunks(self, answer: Answer) -> Chunks:
        """The events of an opened one."""

    def is_told_in_stream(self, error: Exception) -> bool:
        """Whether a stream that fails with `error` before its first token is answered with 200 and `failed`, instead of
        with the status."""
        return False

    def failed(self, error: Exception) -> bytes:
        """The last events of a stream that broke before its first token."""
        return error_event(error)


class CompletionsFormat(AnswerFormat):
    """The format of chats and of text completions."""

    def __init__(self, serving: Serving, stream_options: StreamOptions | None) -> None:
        self._fingerprint = serving.fingerprint
        self._shows_usage = bool(stream_options and stream_options.include_usage)

    def whole(self, answer: Answer) -> bytes:
        write = whole_chat if answer.request.api == "chat" else whole_completion
        return _encode(write(head_of(answer, self._fingerprint), answer.choices, answer.usage, routed(answer)))

    def chunks(self, answer: Answer) -> Chunks:
        return CompletionsChunks(answer, self._fingerprint, self._shows_usage)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that failed; no end mark follows, so that the answer does not look complete."""
    return b"data: " + _encode(ErrorEnvelope(as_api_error(error).body)) + b"\n\n"


def routed(answer: Answer) -> Routed:
    """How an answer that has ended came about."""
    before, timings, tier, decision = answer.escalated_from, answer.timings, answer.tier, answer.decision
    return Routed(
        decision_id=answer.request.request_id,
        tier=tier.number,
        model=tier.model,
        p_ok=answer.p_ok,
        cost_usd=answer.cost_usd,
        latency_ms=_to_microseconds(timings.e2e_ms),
        ttft_ms=_to_microseconds(timings.e2e_ms if timings.ttft_ms is None else timings.ttft_ms),
        overhead_ms=_to_microseconds(timings.overhead_ms),
        classifier=decision.inputs.prediction.classifier_version,
        reason=decision.reason if before is None else f"{decision.reason}; {before.reason}",
        version=tier.version,
        cache=answer.source.cached,
        cost_estimated=True if answer.cost_is_estimated else UNSET,
        thought_end=answer.thought_end or UNSET,
        dropped_turns=answer.request.dropped_turns or UNSET,
        target=tier.name if tier.is_target else UNSET,
        continued_from=continued_from(answer.attempts) or UNSET,
    )


def _to_microseconds(ms: float) -> float:
    """Milliseconds to whole microseconds: what `round` returns, which goes by way of a text."""
    return int(ms * 1e3 + 0.5) / 1e3
