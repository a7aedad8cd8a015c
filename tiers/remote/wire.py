"""The interface between a remote tier and the kind of its server: how requests are sent and answers are read.

The module of each `remote.kind` is imported with the first server of the kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol

import httpx
import msgspec

from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.conversation import Dialect
from tiers.remote.event_stream import EventParser, ServerSentEvent
from tiers.remote.openai_format import WireError
from tiers.remote.request_fields import FORWARDED, with_fields
from tiers.remote.rules import Rules, rules_of, server_of
from tiers.remote.server_state import QueueReport, sum_of_samples
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta, GenerationRequest

_NOTHING: frozenset[str] = frozenset()
MOST_REQUESTS = 1_000_000
"""Of a server at one time: a report of more is none."""


class WireCall(msgspec.Struct, frozen=True):
    """One POST: `path` is relative to the server's `base_url`. `streamed`: the answer is a stream of events. `dropped`:
    the caller's fields that are set and not in the body, because the server's API does not have them."""

    path: str
    body: bytes
    streamed: bool
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    headers: tuple[tuple[bytes, bytes], ...] = ()
    form: Dialect | Literal["chat"] | None = None


class QueueMetric(NamedTuple):
    """Where a server tells its queue. `path`: of a Prometheus page, relative to `base_url`. `running`, `waiting`: the
    gauges of its requests. `finished`: the counter of its answers; "" if it has none."""

    path: str
    running: str
    waiting: str
    finished: str = ""

    def read(self, page: bytes) -> QueueReport | None:
        """Return what `page` tells; None if it lacks one of the gauges, or tells of more requests than can be."""
        running, waiting = sum_of_samples(page, [self.running]), sum_of_samples(page, [self.waiting])
        if running is None or waiting is None or running + waiting > MOST_REQUESTS:
            return None
        return QueueReport(running, waiting, sum_of_samples(page, [self.finished]) if self.finished else None)


class StreamParser(Protocol):
    """Splits the body of a streamed answer into events, in chunks of any size."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises `EventTooLargeError`, `TierError`."""

    def flush(self) -> list[ServerSentEvent]:
        """End the stream: return the events that only its end completes."""


class RemoteWire(ABC):
    """Contract of every kind of server; `tests/tiers/remote/test_remote_kinds.py` runs it against all of them.

    The state of a running answer is in its `Tally` (a wire's own in `Tally.notes`). The order of deltas is
    that of `Delta`. `health_path`: relative to `base_url`, answers a GET when the server is ready; "" if there is none.
    `queue`: where it reports the number of its requests, if it does. `model_path`: where it describes the model, if it
    does; `models_path`: where it lists all its models, as OpenAI does. `signs`: whether each request is signed, by
    `signature`. `needs_limit`: whether a request must bound its answer; those of other servers do so only where caller,
    catalogue or a budget does. `form`: of what is sent and answered as it is. `marks_cache`: whether a request says
    what the server caches. `rules`: of its server and model.
    """

    health_path: str
    queue: QueueMetric | None = None
    model_path: str | None = None
    models_path: str | None = None
    signs: bool = False
    needs_limit: bool = False
    form: Dialect | None = None
    marks_cache: bool = False
    rules = Rules()

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """Return the headers of every request that carry the API key; `key` is "" without one."""
        return [(b"authorization", f"Bearer {key}".encode())] if key else []

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """Return the headers that sign `request`; blocks. Raises `TierUnavailableError`."""
        return []

    def parser(self) -> StreamParser:
        return EventParser()

    def prepare(self) -> None:  # noqa: B027 - most kinds need nothing
        """Read the needed files; blocks. Raises `CatalogError`, or `TierUnavailableError` for what may still come.
        Called before any request, possibly more than once."""

    def model_problem(self, status: int, body: bytes) -> str | None:
        """Return why the model described by a GET of `model_path` cannot serve the tier; None if it can."""
        return None

    def published_output(self, body: bytes) -> int | None:
        """Return the most tokens of an answer that the model described by `body` can give; None if it does not tell."""
        return None

    def is_about_model(self, error: WireError) -> bool:
        """Return whether a request was refused because of its model, its key or the account, which is the operator's
        concern and never the caller's."""
        return False

    def check(self, request: GenerationRequest) -> None:  # noqa: B027 - some kinds support everything
        """Raise `TierRequestError` for what this kind of server does not support and an answer cannot do without.
        Routing asks before it chooses a tier, so it takes no longer than to look at the fields."""

    def passed_on(self, own: RemoteSpec) -> frozenset[str]:
        """Return the names of a caller's fields that this server takes beyond its kind's API, by what it is or by the
        catalogue's entry `own`."""
        return FORWARDED.get(self.rules.server, _NOTHING).union(own.forward)

    def with_own_fields(
        self, body: dict[str, Any], request: GenerationRequest, own: RemoteSpec
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the body with the caller's fields that this server knows beyond its kind's API, and with those of the
        catalogue's entry `own`; and the names of the caller's that it does not get."""
        if not (request.extra or own.body):
            return body, ()
        known: Collection[str] = self.passed_on(own)
        if request.native is not None and request.native.form == self.form == "messages":
            # The caller's API is the server's: it knows more of its fields than we do.
            known = request.extra.keys()
        extra = {name: value for name, value in request.extra.items() if name in known}
        dropped = tuple(name for name in request.extra if name not in extra)
        return with_fields(with_fields(body, extra), own.body), dropped

    @abstractmethod
    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        """Return what to send, with this limit of the answer if it is not None, which it never is for a server that
        needs one. Nothing is added to what the caller and the catalogue set. The request has been
        checked. Raises `TierRequestError` for a conversation that this kind of server cannot read."""

    @abstractmethod
    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """Return an event's deltas; None for the last event. Raises `TierError` for one that reports a failure."""

    @abstractmethod
    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """Return the deltas of a whole answer. Raises `TierError`."""

    def read_end(self, tally: Tally) -> list[Delta]:
        """Return the deltas implied by the end of the stream; without any, unfinished choices are an error."""
        return []


# Module and class.
WIRES: dict[RemoteKind, tuple[str, str]] = {
    "openai": ("openai_wire", "OpenAIWire"),
    "vllm": ("openai_wire", "VllmWire"),
    "sglang": ("openai_wire", "SglangWire"),
    "llama-server": ("openai_wire", "LlamaServerWire"),
    "tensorrt-llm": ("openai_wire", "TensorRtLlmWire"),
    "tgi": ("openai_wire", "TgiWire"),
    "triton-tensorrt-llm": ("triton_wire", "TritonTensorRtLlmWire"),
    "triton-vllm": ("triton_wire", "TritonVllmWire"),
    "openai-provider": ("openai_wire", "OpenAIProviderWire"),
    "azure": ("openai_wire", "AzureWire"),
    "anthropic": ("anthropic_wire", "AnthropicWire"),
    "gemini": ("gemini_wire", "GeminiWire"),
    "bedrock": ("bedrock_wire", "BedrockWire"),
    "vertex-gemini": ("vertex_wire", "VertexGeminiWire"),
    "vertex-anthropic": ("vertex_wire", "VertexAnthropicWire"),
}


def wire_of(remote: RemoteSpec, provider: ProviderName | None = None) -> RemoteWire:
    """Return the wire to such a server, of `provider` where the catalogue names one."""
    module, name = WIRES[remote.kind]
    wire: RemoteWire = getattr(import_module(f"tiers.remote.{module}"), name)(remote)
    wire.rules = rules_of(server_of(remote, provider), remote.model)
    return wire
