"""The wire of each `remote.kind`. Its module is imported with the first server of the kind."""

from importlib import import_module

from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.remote.rules import rules_of, server_of
from tiers.remote.wire import RemoteWire

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
