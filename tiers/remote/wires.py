"""The wire of each `remote.kind`."""

from collections.abc import Callable

from tiers.catalog.tier_spec import RemoteKind, RemoteSpec, TierSpec
from tiers.remote.anthropic_wire import AnthropicWire
from tiers.remote.bedrock_wire import BedrockWire
from tiers.remote.gemini_wire import GeminiWire
from tiers.remote.openai_wire import (
    AzureWire,
    LlamaServerWire,
    OpenAIProviderWire,
    OpenAIWire,
    SglangWire,
    TensorRtLlmWire,
    TgiWire,
    VllmWire,
)
from tiers.remote.triton_wire import TritonTensorRtLlmWire, TritonVllmWire
from tiers.remote.wire import RemoteWire

WIRES: dict[RemoteKind, Callable[[RemoteSpec], RemoteWire]] = {
    "openai": OpenAIWire,
    "vllm": VllmWire,
    "sglang": SglangWire,
    "llama-server": LlamaServerWire,
    "tensorrt-llm": TensorRtLlmWire,
    "tgi": TgiWire,
    "triton-tensorrt-llm": TritonTensorRtLlmWire,
    "triton-vllm": TritonVllmWire,
    "openai-provider": OpenAIProviderWire,
    "azure": AzureWire,
    "anthropic": AnthropicWire,
    "gemini": GeminiWire,
    "bedrock": BedrockWire,
}


def wire_of(spec: TierSpec) -> RemoteWire:
    """Return the wire to the server of `spec`, which has a `remote` table."""
    assert spec.remote is not None
    return WIRES[spec.remote.kind](spec.remote)


def tells_logprobs(spec: TierSpec) -> bool:
    """Return whether the server of `spec`, which has a `remote` table, gives log-probabilities by its declared
    capabilities, or else is of a kind that always does."""
    declared = spec.capabilities.logprobs
    return wire_of(spec).tells_logprobs if declared is None else declared
