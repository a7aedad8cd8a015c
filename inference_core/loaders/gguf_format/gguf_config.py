"""Reads GGUF metadata as ModelConfig: every key that affects the computation; unsupported values are refused.

Settings that would change a computation unread are refused too. Rotary settings: linear scaling, Llama 3.1's rule,
yarn, and longrope's factors. Constants that llama.cpp has in its code and not in its files are those of its sources
(`src/models`).
"""

import math

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, end_of_generation_ids
from inference_core.loaders.rope_scaling import llama3_scaling, max_context
from inference_core.model_config import (
    Architecture,
    AttentionFeatures,
    ExpertMixture,
    ModelConfig,
    RopeScaling,
    RotaryEmbedding,
)

# Keys of llama.cpp that change what some architecture computes, and the architectures for which they are read.
# Elsewhere a file that sets one to anything but a neutral value is refused: its answers would be wrong.
COMPUTATION: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale", "attention.scale"), ("granite",)),
    "attn_logit_softcapping": ("gemma2",),
    "final_logit_softcapping": ("gemma2", "gemma3"),
    "attention.sliding_window": ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gpt-oss"),
    "attention.sliding_window_pattern": ("gemma2", "gemma3", "gpt-oss"),
    "rope.freq_base_swa": ("gemma3",),
    "rope.scaling.attn_factor": ("phi3",),
    "rope.scaling.yarn_ext_factor": (),
    **dict.fromkeys(("expert_count", "expert_used_count"), ("llama", "qwen3moe", "gpt-oss")),
    "expert_feed_forward_length": ("qwen3moe", "gpt-oss"),
    "expert_weights_norm": ("qwen3moe",),
    **dict.fromkeys(
        ("activation_sparsity_scale", "attention.clamp_kqv", "attention.group_norm_groups", "attention.kv_lora_rank",
         "attention.max_alibi_bias", "attention.output_scale", "attention.q_lora_rank", "attention.shared_kv_layers",
         "attention.temperature_length", "attention.temperature_scale", "expert_group_count",
         "expert_group_used_count", "expert_shared_count", "expert_shared_feed_forward_length", "expert_weights_scale",
         "interleave_moe_layer_step", "leading_dense_block_count", "moe_every_n_layers", "nextn_predict_layers",
         "rescale_every_n_layers", "rope.dimension_sections", "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier",
         "router_logit_softcapping", "swin_norm", "use_parallel_residual"),
        (),
    ),
}  # fmt: skip
_TRUE_BY_DEFAULT = ("attention.causal", "rope.scaling.finetuned")
_SOFTMAX = 1


class Metadata:
    """The `{architecture}.…` keys of a header."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self.header = header
        self.prefix = architecture

    def number(self, key: str, default: float | None = None) -> float:
        """One number; a list per layer if its entries all agree. Raises ModelFileError."""
        value = self.header.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = float(value[0])
        if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            problem = "is missing" if value is None else "is not a single number"
            raise ModelFileError(f"{self.header.path}: metadata '{self.prefix}.{key}' {problem}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.number(key, default))

    def written(self, key: str, default: float | None = None) -> float:
        """The shortest decimal of a float32: 9.999999747378752e-06 becomes 1e-5."""
        return float(str(np.float32(self.number(key, default))))

    def text(self, key: str) -> str | None:
        value = self.header.metadata.get(f"{self.prefix}.{key}")
        return value if isinstance(value, str) else None

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.header.metadata.get(f"{self.prefix}.{key}", default))

    def flags(self, key: str, count: int) -> list[bool] | None:
        """A list of `count` truth values; None for a number or nothing. Raises ModelFileError for another length."""
        value = self.header.metadata.get(f"{self.prefix}.{key}")
        if not isinstance(value, np.ndarray):
            return None
        if value.size != count:
            raise ModelFileError(
                f"{self.header.path}: '{self.prefix}.{key}' has {value.size} entries for {count} layers"
            )
        return [bool(entry) for entry in value]

    def refuse_unread(self) -> None:
        """Raise ModelFileError, naming the key, for a setting that changes the computation and is not read."""
        for key, readers in COMPUTATION.items():
            if self.prefix not in readers and not self._is_neutral(key):
                self._refuse(key)
        for key in _TRUE_BY_DEFAULT:
            if not self.flag(key, True) and (self.prefix == "granite" or key == "attention.causal"):
                self._refuse(key)
        if self.integer("expert_gating_func", _SOFTMAX) not in (0, _SOFTMAX):
            self._refuse("expert_gating_func")

    def _is_neutral(self, key: str) -> bool:
        value = self.header.metadata.get(f"{self.prefix}.{key}")
        if isinstance(value, np.ndarray):
            return not value.any()
        return value in (None, False, 0) or (isinstance(value, float) and value == 1.0)

    def _refuse(self, key: str) -> None:
        value = self.header.metadata[f"{self.prefix}.{key}"]
        raise ModelFileError(f"{self.header.path}: '{self.prefix}.{key}' = {value} is not supported")


FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (FREQUENCIES, LONG, SHORT)

Factors = dict[str, NDArray[np.float32]]


def rope_scaling(metadata: Metadata, theta: float, rotary_dim: int, factors: Factors) -> RopeScaling | None:
    """`factors`: of `ROPE_TENSORS` in the file, float32 [rotary_dim / 2]. Raises ModelFileError if unsupported."""
    path = metadata.header.path
    if FREQUENCIES in factors:
        return llama3_scaling(path, factors[FREQUENCIES], theta, rotary_dim)
    kind = metadata.text("rope.scaling.type")
    if LONG in factors or SHORT in factors:
        return _longrope(metadata, factors)
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    if kind not in (None, "none", "linear", "yarn"):
        raise ModelFileError(
            f"{path}: rope scaling '{kind}' is not supported; supported are none, linear, llama3, yarn and longrope"
        )
    if kind == "yarn":
        return _yarn(metadata, factor)
    if kind == "none" or factor in (0.0, 1.0):
        return None
    return RopeScaling(kind="linear", factor=factor)


def _yarn(metadata: Metadata, factor: float) -> RopeScaling:
    """Scores are divided by the temperature of Peng et al. (2023), section 3.4, as llama.cpp does. `truncate` has no
    key: gpt-oss's config.json alone says that it is false."""
    gpt_oss = metadata.prefix == "gpt-oss"
    original = metadata.integer(
        "rope.scaling.original_context_length", 4096 if gpt_oss else metadata.integer("context_length")
    )
    temperature = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=not gpt_oss,
        attention_factor=temperature * metadata.number("rope.scaling.yarn_attn_factor", 1.0),
    )


def _longrope(metadata: Metadata, factors: Factors) -> RopeScaling:
    path, length = metadata.header.path, metadata.integer("context_length")
    if LONG not in factors or SHORT not in factors:
        raise ModelFileError(f"{path}: longrope needs both {LONG} and {SHORT}")
    original = metadata.integer("rope.scaling.original_context_length", length)
    return RopeScaling(
        kind="longrope",
        factor=length / max(original, 1),
        original_max_position=original,
        attention_factor=metadata.number("rope.scaling.attn_factor", 1.0),
        short=tuple(factors[SHORT].tolist()),
        long=tuple(factors[LONG].tolist()),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "llama": "llama",  # and Mistral; with experts, Mixtral
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "phi3": "phi3",
    "granite": "granite",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
}
_GEMMAS = ("gemma2", "gemma3")
# The Gemma models of 27 billion weights, by their layers, divide scores by the root of hidden size / heads.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
_NO_ROPE_PERIOD = 4
_SMOLLM3 = "smollm3"


def read_config(header: GGUFHeader, factors: Factors) -> ModelConfig:
    """`factors`: the tensors of `ROPE_TENSORS` that the file has. Raises ModelFileError."""
    kind = header.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ModelFileError(
            f"{header.path}: architecture {kind!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    metadata = Metadata(header, kind)
    metadata.refuse_unread()
    num_heads, num_layers = metadata.integer("attention.head_count"), metadata.integer("block_count")
    hidden_size = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", hidden_size // max(num_heads, 1))
    rotary_dim = _rotary_dim(metadata, head_dim)
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelFileError(f"{header.path} lacks the tensor 'token_embd.weight'")
    if num_layers > len(header.tensors):  # First, since layers are listed below.
        raise ModelFileError(
            f"{header.path}: its settings claim {num_layers} layers, but it has {len(header.tensors)} tensors"
        )
    gpt_oss = kind == "gpt-oss"
    experts = metadata.integer("expert_count", None if gpt_oss else 0)
    # Granite's residual multiplier is folded in as for Hugging Face folders (`huggingface.hf_config`).
    residual = _positive(metadata, "residual_scale", 1.0) if kind == "granite" else 1.0
    gemma, theta = kind in _GEMMAS, metadata.number("rope.freq_base", 10000.0)
    scaling, length = rope_scaling(metadata, theta, rotary_dim, factors), metadata.integer("context_length")
    windows = _window_layers(metadata, num_layers) if kind in _WINDOW_PERIOD else None
    return ModelConfig(
        architecture="mixtral" if kind == "llama" and experts else ARCHITECTURES[kind],
        vocab_size=embeddings.shape[0],
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(metadata),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=max_context(header.path, scaling, length),
        rms_eps=metadata.written("attention.layer_norm_rms_epsilon") / residual**2,
        rope=RotaryEmbedding(
            theta=metadata.written("rope.freq_base", 10000.0),
            scaling=scaling,
            dim=None if rotary_dim == head_dim else rotary_dim,
            local_theta=metadata.written("rope.freq_base_swa", 10000.0) if kind == "gemma3" and windows else None,
            skipped_layers=tuple(range(_NO_ROPE_PERIOD - 1, num_layers, _NO_ROPE_PERIOD)) if kind == _SMOLLM3 else (),
        ),
        attention=AttentionFeatures(
            qkv_bias="blk.0.attn_q.bias" in header.tensors,
            output_bias="blk.0.attn_output.bias" in header.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
            qk_norm_whole=kind == "olmo2",
            sliding_window=metadata.integer("attention.sliding_window", 4096 if kind == "gemma2" else 0) or None,
            window_layers=windows,
            scale=_attention_scale(metadata, num_layers, hidden_size, num_heads),
            sinks=gpt_oss,
            softcap=metadata.number("attn_logit_softcapping", 50.0) if kind == "gemma2" else None,
        ),
        experts=_experts(metadata, experts, gpt_oss) if experts else None,
        tie_embeddings="output.weight" not in header.tensors,
        embedding_scale=math.sqrt(max(hidden_size, 0)) if gemma else _embedding_scale(metadata, residual),
        activation="gelu-tanh" if gemma else "clamped-swiglu" if gpt_oss else "silu",
        pre_norm=kind != "olmo2",
        post_norm=gemma or kind == "olmo2",
        final_softcap=_final_softcap(metadata),
        bos_token_id=_token_id(header, "bos"),
        eos_token_ids=end_of_generation_ids(header),
    )


def _experts(metadata: Metadata, count: int, gpt_oss: bool) -> ExpertMixture:
    return ExpertMixture(
        count=count,
        per_token=metadata.integer("expert_used_count", 0),
        normalised=gpt_oss or metadata.flag("expert_weights_norm", True),
        has_bias=gpt_oss,
    )


def logits_divisor(header: GGUFHeader) -> float:
    """What the logits of the file's model are divided by (Granite)."""
    if header.metadata.get("general.architecture") != "granite":
        return 1.0
    return _positive(Metadata(header, "granite"), "logit_scale", 1.0)


def _intermediate_size(metadata: Metadata) -> int:
    """Of one expert where a model has experts: a Mixtral's is under the key of dense models, a gpt-oss's may be."""
    if metadata.prefix == "qwen3moe":
        return metadata.integer("expert_feed_forward_length")
    if metadata.prefix == "gpt-oss":
        return metadata.integer("expert_feed_forward_length", metadata.integer("feed_forward_length", 0))
    return metadata.integer("feed_forward_length")


def _rotary_dim(metadata: Metadata, head_dim: int) -> int:
    """Numbers of a head that are rotated: only of Phi-3's may be fewer than all."""
    rotated = metadata.integer("rope.dimension_count", head_dim)
    for key, size in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        stated = metadata.integer(key, size)
        if stated != head_dim and not (metadata.prefix == "phi3" and key.startswith("rope") and 2 <= stated < head_dim):
            raise ModelFileError(
                f"{metadata.header.path}: '{metadata.prefix}.{key}' is {stated}, but heads have {head_dim} "
                "dimensions; models with other value or rotary dimensions are not supported"
            )
    return rotated


def _window_layers(metadata: Metadata, num_layers: int) -> tuple[int, ...]:
    """The layers with a window: a list says which, or every layer but the last of each period has one."""
    if metadata.prefix == "gemma3" and not metadata.integer("attention.sliding_window", 0):
        return ()
    key = "attention.sliding_window_pattern"
    listed = metadata.flags(key, num_layers)
    if listed is not None:
        return tuple(i for i, windowed in enumerate(listed) if windowed)
    period = metadata.integer(key, _WINDOW_PERIOD[metadata.prefix])
    return tuple(i for i in range(num_layers) if period and i % period < period - 1)


def _attention_scale(metadata: Metadata, num_layers: int, hidden_size: int, num_heads: int) -> float | None:
    if metadata.prefix == "granite" and metadata.number("attention.scale", 0.0):
        return _positive(metadata, "attention.scale", 0.0)
    if num_layers == _LAYERS_OF_27B.get(metadata.prefix) and hidden_size >= num_heads >= 1:
        return 1.0 / math.sqrt(hidden_size // num_heads)
    return None


def _final_softcap(metadata: Metadata) -> float | None:
    if metadata.prefix not in _GEMMAS:
        return None
    return metadata.number("final_logit_softcapping", 30.0 if metadata.prefix == "gemma2" else 0.0) or None


def _embedding_scale(metadata: Metadata, residual: float) -> float:
    scale = _positive(metadata, "embedding_scale", 1.0) if metadata.prefix == "granite" else 1.0
    return scale / residual


def _positive(metadata: Metadata, key: str, default: float) -> float:
    value = metadata.written(key, default)
    if value <= 0:
        raise ModelFileError(f"{metadata.header.path}: '{metadata.prefix}.{key}' is {value}; it must be positive")
    return value


def _token_id(header: GGUFHeader, name: str) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else None
