"""The kinds of servers of remote tiers: where and how each is reached.

The module of each `remote.kind` is imported with the first server of the kind.
"""

from importlib import import_module
from typing import NamedTuple

import httpx
import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.dialects.dialect import ServerDialect
from tiers.dialects.rules import rules_of, server_of
from tiers.dialects.server_error import parse_error
from tiers.remote.server_state import QueueReport, published_output, sum_of_samples

MOST_REQUESTS = 1_000_000
"""Of a server at one time: a report of more is none."""


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


class RemoteWire(ServerDialect):
    """Contract of every kind of server: its dialect, and where and how it is reached.

    `health_path`: relative to `base_url`, answers a GET when the server is ready; "" if there is none. `queue`: where
    it reports the number of its requests, if it does. `model_path`: where it describes the model, if it does;
    `models_path`: where it lists all its models, as OpenAI does. `signs`: whether each request is signed, by
    `signature`.
    """

    health_path: str
    queue: QueueMetric | None = None
    model_path: str | None = None
    models_path: str | None = None
    signs: bool = False

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """Return the headers of every request that carry the API key; `key` is "" without one."""
        return [(b"authorization", f"Bearer {key}".encode())] if key else []

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """Return the headers that sign `request`; blocks. Raises `TierUnavailableError`."""
        return []

    def prepare(self) -> None:
        """Read the needed files; blocks. Raises `CatalogError`, or `TierUnavailableError` for what may still come.
        Called before any request, possibly more than once."""

    def model_problem(self, status: int, body: bytes) -> str | None:
        """Return why the model described by a GET of `model_path` cannot serve the tier; None if it can."""
        return None

    def published_output(self, body: bytes) -> int | None:
        """Return the most tokens of an answer that the model described by `body` can give; None if it does not tell."""
        return None


def published_by(body: bytes, fields: tuple[str, ...]) -> int | None:
    """Return the most tokens of an answer that a provider's description of a model tells under one of `fields`."""
    try:
        entry = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    return published_output(entry, fields) if isinstance(entry, dict) else None


def missing_model(model: str, body: bytes) -> str:
    """Return what to say of a 404 with this body for the model of the catalogue."""
    return f"has no model {model!r}: {parse_error(body).message[:200]}; check model in the catalogue"


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
