"""The hyper-parameters of a decoder, whatever its file format: a list of features, so that no architecture has code of
its own."""

from typing import Literal, get_args

import msgspec

Architecture = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "granite",
    "smollm3",
    "olmo2",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
]
Activation = Literal["silu", "gelu-tanh", "clamped-swiglu"]
DecoderKind = Literal["a GPU", "a mesh"]
DECODER_KINDS: tuple[DecoderKind, ...] = get_args(DecoderKind)


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Frequency scaling of rotary embeddings: `linear`, `llama3` (Llama 3.1's piecewise rule), `yarn` (Peng et al.
    2023) or `longrope` (Ding et al. 2024).
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """With yarn and longrope, what cosines and sines are multiplied by."""
    short: tuple[float, ...] = ()
    """Longrope's divisors of each frequency for contexts up to `original_max_position`."""
    long: tuple[float, ...] = ()
    """Longrope's divisors of each frequency for longer contexts."""


class RotaryEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """How queries and keys carry positions (Su et al. 2021)."""

    theta: float
    scaling: RopeScaling | None = None
    dim: int | None = None
    """Numbers of a head that are rotated, the first ones of each half; None for all."""
    local_theta: float | None = None
    """The base of frequencies in layers with a window (Gemma 3)."""
    skipped_layers: tuple[int, ...] = ()
    """Layers without positions (SmolLM3)."""

    @property
    def num_tables(self) -> int:
        """How many rotary tables the layers have between them."""
        return 2 if self.skipped_layers or self.local_theta is not None else 1


class AttentionFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What attention has besides its heads."""

    qkv_bias: bool = False
    """Biases of the projections before attention (Qwen2)."""
    output_bias: bool = False
    """A bias of the projection behind attention, too (gpt-oss)."""
    qk_norm: bool = False
    """RMSNorm of q and k, over each head (Qwen3, Gemma 3) or all of them (OLMo 2)."""
    qk_norm_whole: bool = False
    sliding_window: int | None = None
    """Window in tokens of the layers `window_layers`, or of all layers where that is None."""
    window_layers: tuple[int, ...] | None = None
    scale: float | None = None
    """What q·k is multiplied by; None is 1 / sqrt(head dim)."""
    sinks: bool = False
    """Each head has a score that takes weight and gives no value (Xiao et al. 2024; learned in gpt-oss)."""
    softcap: float | None = None
    """c in c · tanh(x / c) of attention scores (Gemma 2)."""

    def window_of(self, layer: int) -> int | None:
        """The sliding window of `layer` in tokens, None for full attention."""
        return self.sliding_window if self.window_layers is None or layer in self.window_layers else None


class ExpertMixture(msgspec.Struct, frozen=True, kw_only=True):
    """The network behind attention as a mixture of experts (Shazeer et al. 2017)."""

    count: int
    per_token: int
    """How many experts each token takes. They are weighted by the router's softmax over all experts."""
    normalised: bool = False
    """Take the router's softmax over the experts that are taken, not over all of them."""
    has_bias: bool = False
    """Biases of the router and of every expert."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters that decide the computation, in transformers' vocabulary."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Inner width of the MLP; of a mixture, the width of one expert."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope: RotaryEmbedding
    attention: AttentionFeatures = AttentionFeatures()
    experts: ExpertMixture | None = None
    """None for a dense network."""
    tie_embeddings: bool = False
    embedding_scale: float = 1.0
    """What rows of the embedding are multiplied by."""
    activation: Activation = "silu"
    swiglu_alpha: float = 1.702
    """Parameter of the activation `clamped-swiglu` (`native.cpu.clamped_swiglu`)."""
    swiglu_limit: float = 7.0
    """Parameter of the activation `clamped-swiglu` (`native.cpu.clamped_swiglu`)."""
    pre_norm: bool = True
    """Whether a norm stands before each sublayer."""
    post_norm: bool = False
    """Whether a norm stands behind each sublayer, before its output is added."""
    final_softcap: float | None = None
    """c in c · tanh(x / c) of logits (Gemma 2)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_experts(self) -> int:
        """Experts in a layer; 0 for a dense network."""
        return 0 if self.experts is None else self.experts.count

    def window_of(self, layer: int) -> int | None:
        """The sliding window of `layer` in tokens, None for full attention."""
        return self.attention.window_of(layer)

    def rope_of(self, layer: int) -> int:
        """Which of the tables of `models.transformer.rotary_table` rotates `layer`."""
        if layer in self.rope.skipped_layers:
            return 1
        return int(self.rope.local_theta is not None and self.window_of(layer) is not None)

    def not_computed_by(self, where: DecoderKind) -> list[str]:
        """The features, by name, that only other decoders compute; the CPU's compute all."""
        present = {
            "q and k normalised over all heads": where == "a mesh" and self.attention.qk_norm_whole,
            f"the activation {self.activation}": self.activation not in ("silu", "gelu-tanh"),
            "attention sinks": self.attention.sinks,
            "a bias of attention's output": self.attention.output_bias,
            "biases of experts": self.experts is not None and self.experts.has_bias,
        }
        return [name for name, is_present in present.items() if is_present]
