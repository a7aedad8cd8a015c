"""The hyper-parameters of a Llama-family decoder, whatever its file format."""

from typing import Literal

import msgspec

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Frequency scaling of rotary embeddings: `linear`, or `llama3` (Llama 3.1's piecewise rule)."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters that decide the computation, in transformers' vocabulary.

    `qkv_bias`: Qwen2. `qk_norm`: Qwen3 (RMSNorm over each head of q and k). `sliding_window`: Mistral.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
