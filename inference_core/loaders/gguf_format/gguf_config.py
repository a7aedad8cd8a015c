"""Reads GGUF metadata as ModelConfig: every key that affects the computation; unsupported values are refused."""

import math

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader
from inference_core.loaders.gguf_format.gguf_vocabulary import end_of_generation_ids
from inference_core.loaders.gguf_format.rope_factors import llama3_scaling
from inference_core.model_config import Architecture, ModelConfig, RopeScaling

ARCHITECTURES: dict[str, Architecture] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gpt-oss": "gpt_oss",
}


class _Metadata:
    """Typed access to the `{architecture}.…` keys of a header."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self.header = header
        self.prefix = architecture

    def number(self, key: str, default: float | None = None) -> float:
        value = self.header.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = float(value[0])  # Per-layer lists whose entries all agree.
        if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            problem = "is missing" if value is None else "is not a single number"
            raise ModelFileError(f"{self.header.path}: metadata '{self.prefix}.{key}' {problem}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.number(key, default))

    def text(self, key: str) -> str | None:
        value = self.header.metadata.get(f"{self.prefix}.{key}")
        return value if isinstance(value, str) else None

    def __contains__(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.header.metadata


def read_config(header: GGUFHeader, rope_factors: NDArray[np.float32] | None) -> ModelConfig:
    """`rope_factors` [head_dim / 2] is the `rope_freqs` tensor of a Llama 3.1 file, if it has one."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{header.path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    metadata = _Metadata(header, architecture)
    num_heads = metadata.integer("attention.head_count")
    hidden_size = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", hidden_size // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.integer(key, head_dim) != head_dim:
            raise ModelFileError(
                f"{header.path}: '{architecture}.{key}' is {metadata.integer(key)}, but heads have {head_dim} "
                "dimensions; models with other value or rotary dimensions are not supported"
            )
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelFileError(f"{header.path} lacks the tensor 'token_embd.weight'")
    gpt_oss, num_layers = architecture == "gpt-oss", metadata.integer("block_count")
    inner = metadata.integer("feed_forward_length", 0 if gpt_oss else None)
    rope_theta = metadata.number("rope.freq_base", 10000.0)
    return ModelConfig(
        architecture=ARCHITECTURES[architecture],
        vocab_size=embeddings.shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.integer("expert_feed_forward_length", inner) if gpt_oss else inner,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=metadata.integer("context_length"),
        rms_eps=_as_written(metadata.number("attention.layer_norm_rms_epsilon")),
        rope_theta=_as_written(rope_theta),
        rope_scaling=_rope_scaling(metadata, rope_theta, head_dim, rope_factors),
        tie_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        sliding_window=metadata.integer("attention.sliding_window", 0) or None,
        # Every other layer of gpt-oss, from the first: its files have no list of them.
        window_layers=tuple(range(0, min(num_layers, len(header.tensors)), 2)) if gpt_oss else None,
        activation="clamped-swiglu" if gpt_oss else "silu",
        attention_sinks=gpt_oss,
        num_experts=metadata.integer("expert_count") if gpt_oss else 0,
        experts_per_token=metadata.integer("expert_used_count") if gpt_oss else 0,
        normalise_experts=gpt_oss,
        expert_bias=gpt_oss,
        bos_token_id=_token_id(header, "bos"),
        eos_token_ids=end_of_generation_ids(header),
    )


def _rope_scaling(
    metadata: _Metadata, theta: float, head_dim: int, factors: NDArray[np.float32] | None
) -> RopeScaling | None:
    path = metadata.header.path
    if factors is not None:
        return llama3_scaling(path, factors, theta, head_dim)
    kind = metadata.text("rope.scaling.type")
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    if kind == "yarn" and metadata.prefix == "gpt-oss":
        # As its config.json: `truncate` is false, which GGUF has no key for.
        length = metadata.integer("rope.scaling.original_context_length", 4096)
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        return RopeScaling(
            kind="yarn", factor=factor, original_max_position=length, truncate=False, attention_factor=attention
        )
    if kind not in (None, "none", "linear"):
        raise ModelFileError(f"{path}: rope scaling '{kind}' is not supported; supported are none, linear and llama3")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    return RopeScaling(kind="linear", factor=factor)


def _token_id(header: GGUFHeader, name: str) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else None


def _as_written(value: float) -> float:
    """The shortest decimal of a float32: 9.999999747378752e-06 becomes 1e-5."""
    return float(str(np.float32(value)))
