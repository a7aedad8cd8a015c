"""Typed access to a GGUF file's settings, and refusal of those that would change a computation unread."""

import math

import numpy as np

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader

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
