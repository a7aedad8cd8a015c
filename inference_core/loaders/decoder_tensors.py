"""The tensors of a decoder and their shapes, under Hugging Face names, and the shapes of well-known models.

The latter serve to plan and measure memory and speed without files, as their published config.json files state them.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.model_config import (
    AttentionFeatures,
    DecoderKind,
    ExpertMixture,
    ModelConfig,
    RopeScaling,
    RotaryEmbedding,
)

Shape = tuple[int, ...]
MAX_EXPERTS = 4096


def decoder_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that the decoder needs. Linear weights are [out features, in features]."""
    tensors: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            tensors[f"model.layers.{layer}.{name}"] = shape
    return tensors


def _layer_tensors(config: ModelConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors: dict[str, Shape] = {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
    }
    attention = config.attention
    if attention.qkv_bias:
        tensors["self_attn.q_proj.bias"] = (query,)
        tensors["self_attn.k_proj.bias"] = (key,)
        tensors["self_attn.v_proj.bias"] = (key,)
    if attention.output_bias:
        tensors["self_attn.o_proj.bias"] = (hidden,)
    if attention.sinks:
        tensors["self_attn.sinks"] = (config.num_heads,)
    if attention.qk_norm:
        tensors["self_attn.q_norm.weight"] = (query if attention.qk_norm_whole else config.head_dim,)
        tensors["self_attn.k_norm.weight"] = (key if attention.qk_norm_whole else config.head_dim,)
    tensors |= _mlp_tensors(config.experts, hidden, config.intermediate_size)
    return tensors | {f"{name}.weight": (hidden,) for name in layer_norms(config).values()}


def _mlp_tensors(experts: ExpertMixture | None, hidden: int, inner: int) -> dict[str, Shape]:
    """The tensors of the network behind attention."""
    tensors: dict[str, Shape] = {}
    for mlp in ["mlp"] if experts is None else [f"mlp.experts.{i}" for i in range(experts.count)]:
        tensors[f"{mlp}.gate_proj.weight"] = tensors[f"{mlp}.up_proj.weight"] = (inner, hidden)
        tensors[f"{mlp}.down_proj.weight"] = (hidden, inner)
        if experts is not None and experts.has_bias:
            tensors[f"{mlp}.gate_proj.bias"] = tensors[f"{mlp}.up_proj.bias"] = (inner,)
            tensors[f"{mlp}.down_proj.bias"] = (hidden,)
    if experts is not None:
        tensors["mlp.gate.weight"] = (experts.count, hidden)
        if experts.has_bias:
            tensors["mlp.gate.bias"] = (experts.count,)
    return tensors


def layer_norms(config: ModelConfig) -> dict[str, str]:
    """The norms of a layer, by where they stand: before and behind attention and the network behind it."""
    norms = {}
    if config.pre_norm:
        norms["attention_norm"] = "input_layernorm"
        norms["mlp_norm"] = "pre_feedforward_layernorm" if config.post_norm else "post_attention_layernorm"
    if config.post_norm:
        norms["attention_post_norm"] = "post_attention_layernorm"
        norms["mlp_post_norm"] = "post_feedforward_layernorm"
    return norms


def check_tensors(path: Path, config: ModelConfig, shapes: Mapping[str, Shape]) -> None:
    """Raise ModelFileError if a tensor is missing, has another shape, or would be ignored by the decoder."""
    if config.num_layers > len(shapes):  # First, since the list of missing tensors might be endless.
        raise ModelFileError(f"{path}: its settings claim {config.num_layers} layers, but it has {len(shapes)} tensors")
    expected = decoder_tensors(config)
    missing = sorted(expected.keys() - shapes.keys())
    if missing:
        raise ModelFileError(f"{path} lacks {len(missing)} of {len(expected)} tensors: {_some(missing)}")
    unknown = sorted(shapes.keys() - expected.keys())
    if unknown:
        raise ModelFileError(
            f"{path} has {len(unknown)} tensors that a {config.architecture} decoder does not use, so its answers "
            f"would be wrong: {_some(unknown)}"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ModelFileError(
                f"{path}: tensor '{name}' has shape {shapes[name]}; the model's settings imply {shape}"
            )


def refuse_features(path: Path, config: ModelConfig, where: DecoderKind) -> None:
    """Raise ModelFileError, with what serves it, for a model with features that `where` does not compute."""
    if lacking := config.not_computed_by(where):
        raise ModelFileError(
            f"{path}: {where} does not compute {', '.join(lacking)} ({config.architecture}); serve it on the CPU, "
            'or by an installed program (engine = "vllm" in the catalogue)'
        )


def check_config(path: Path, config: ModelConfig) -> None:
    """Raise ModelFileError for impossible settings, before any arithmetic on them."""
    for field in (
        "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
        "max_position",
    ):  # fmt: skip
        if getattr(config, field) < 1:
            raise ModelFileError(f"{path}: {field} is {getattr(config, field)}; it must be at least 1")
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{path}: {config.num_heads} attention heads cannot share {config.num_kv_heads} KV heads evenly"
        )
    if config.head_dim % 2 or (config.rope.dim or 0) % 2:
        raise ModelFileError(f"{path}: head_dim is {config.head_dim}; rotary embeddings need an even one")
    if not 0 <= config.rms_eps < math.inf:
        raise ModelFileError(f"{path}: rms_eps is {config.rms_eps}; it must be 0 or a small positive number")
    if not 0 < config.rope.theta < math.inf:
        raise ModelFileError(f"{path}: rope_theta is {config.rope.theta}; it must be a positive number")
    if config.experts is not None:
        _check_experts(path, config.experts)
    for name, value in (
        ("attention_softcap", config.attention.softcap),
        ("final_softcap", config.final_softcap),
        ("local_rope_theta", config.rope.local_theta),
        ("embedding_scale", config.embedding_scale),
        ("swiglu_alpha", config.swiglu_alpha),
        ("swiglu_limit", config.swiglu_limit),
    ):
        if value is not None and not 0 < value < math.inf:
            raise ModelFileError(f"{path}: {name} is {value}; it must be a positive number")
    if config.attention.sliding_window is not None and config.attention.sliding_window < 1:
        raise ModelFileError(f"{path}: sliding_window is {config.attention.sliding_window}; it must be at least 1")
    if config.rope.scaling is not None:
        _check_rope_scaling(path, config.rope.scaling, (config.rope.dim or config.head_dim) // 2)
    for token_id in config.eos_token_ids:
        if not 0 <= token_id < config.vocab_size:
            raise ModelFileError(f"{path}: end token {token_id} lies outside the vocabulary of {config.vocab_size}")


def _check_experts(path: Path, experts: ExpertMixture) -> None:
    if experts.count > MAX_EXPERTS:  # Since their tensors are listed.
        raise ModelFileError(f"{path}: {experts.count} experts in a layer; at most {MAX_EXPERTS} are supported")
    if not 1 <= experts.per_token <= experts.count:
        raise ModelFileError(f"{path}: a token cannot take {experts.per_token} of {experts.count} experts")


def _check_rope_scaling(path: Path, scaling: RopeScaling, half: int) -> None:
    """`half`: frequencies of a head."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if scaling.kind == "llama3" and not (0 < low < high < math.inf and scaling.original_max_position > 0):
        raise ModelFileError(
            f"{path}: llama3 rope scaling from {low} to {high} of {scaling.original_max_position} positions; "
            "0 < low < high and a positive length are needed"
        )
    if not (0 < scaling.attention_factor < math.inf and scaling.original_max_position > 0):
        raise ModelFileError(
            f"{path}: {scaling.kind} rope scaling of {scaling.original_max_position} positions with the attention "
            f"factor {scaling.attention_factor}; both must be positive numbers"
        )
    if scaling.kind == "yarn" and not 0 < scaling.beta_slow < scaling.beta_fast < math.inf:
        raise ModelFileError(f"{path}: yarn needs 0 < beta_slow < beta_fast")
    if scaling.kind == "longrope" and not all(
        len(divisors) == half and all(0 < d < math.inf for d in divisors) for divisors in (scaling.short, scaling.long)
    ):
        raise ModelFileError(f"{path}: longrope needs {half} positive short and long factors")


def _some(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _llama3(
    hidden: int, intermediate: int, layers: int, heads: int, *, head_dim: int = 128, factor: float = 8.0,
    tie_embeddings: bool = False,
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=hidden, intermediate_size=intermediate, num_layers=layers,
        num_heads=heads, num_kv_heads=8, head_dim=head_dim, max_position=131_072, rms_eps=1e-5,
        rope=RotaryEmbedding(theta=5e5, scaling=RopeScaling(kind="llama3", factor=factor)),
        tie_embeddings=tie_embeddings,
    )  # fmt: skip


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, tie_embeddings: bool = False) -> ModelConfig:
    return ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=hidden, intermediate_size=intermediate, num_layers=layers,
        num_heads=heads, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6,
        rope=RotaryEmbedding(theta=1e6), attention=AttentionFeatures(qk_norm=True), tie_embeddings=tie_embeddings,
    )  # fmt: skip


SHAPES: dict[str, ModelConfig] = {
    "smollm2-135m": ModelConfig(
        architecture="llama", vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
        num_kv_heads=3, head_dim=64, max_position=8192, rms_eps=1e-5, rope=RotaryEmbedding(theta=1e5),
        tie_embeddings=True,
    ),
    "llama-3.2-1b": _llama3(2048, 8192, 16, 32, head_dim=64, factor=32.0, tie_embeddings=True),
    "llama-3.2-3b": _llama3(3072, 8192, 28, 24, factor=32.0, tie_embeddings=True),
    "mistral-7b": ModelConfig(
        architecture="mistral", vocab_size=32_768, hidden_size=4096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, max_position=32_768, rms_eps=1e-5,
        rope=RotaryEmbedding(theta=1e6),
    ),
    "qwen2.5-7b": ModelConfig(
        architecture="qwen2", vocab_size=152_064, hidden_size=3584, intermediate_size=18_944, num_layers=28,
        num_heads=28, num_kv_heads=4, head_dim=128, max_position=32_768, rms_eps=1e-6,
        rope=RotaryEmbedding(theta=1e6), attention=AttentionFeatures(qkv_bias=True),
    ),
    "llama-3.1-8b": _llama3(4096, 14_336, 32, 32),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tie_embeddings=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tie_embeddings=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tie_embeddings=True),
    "qwen3-8b": _qwen3(4096, 12_288, 36, 32),
    "qwen3-14b": _qwen3(5120, 17_408, 40, 40),
    "qwen3-32b": _qwen3(5120, 25_600, 64, 64),
    "llama-3.3-70b": _llama3(8192, 28_672, 80, 64),
    "llama-3.1-405b": _llama3(16_384, 53_248, 126, 128),
}  # fmt: skip


def shape(name: str) -> ModelConfig:
    """The shape of a model. Raises ModelFileError with the known names."""
    if name not in SHAPES:
        raise ModelFileError(f"no shape '{name}'; known are {', '.join(SHAPES)}")
    return SHAPES[name]
