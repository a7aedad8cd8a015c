"""The interface of quantisation methods, which quantise one layer at a time from weights and activation statistics.

One decoder layer is computed in float32, with the sources of its linear layers' inputs. Statistics of these are kept
running, so that no activations need to be stored. A scale per channel is folded from activations into weights without
changing a layer's outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch.nn import functional

from inference_core.errors import QuantizationError
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import reference_rms_norm


class ActivationStatistics:
    """Running statistics of inputs [tokens, K], float32: peak max|x| [K], magnitude mean|x| [K] and, if requested, the
    second moments mean(x xᵀ) [K, K], from which the output error of any change of the weights follows.
    """

    def __init__(self, width: int, *, moments: bool) -> None:
        self.tokens = 0
        self.peak = torch.zeros(width)
        self._magnitude = torch.zeros(width)
        self._moments = torch.zeros(width, width) if moments else None

    def add(self, inputs: torch.Tensor) -> None:
        """Add inputs [tokens, K]."""
        self.tokens += len(inputs)
        sizes = inputs.abs()
        self.peak = torch.maximum(self.peak, sizes.amax(dim=0))
        self._magnitude += sizes.sum(dim=0)
        if self._moments is not None:
            self._moments.addmm_(inputs.T, inputs)

    @property
    def magnitude(self) -> torch.Tensor:
        """mean|x| [K]."""
        return self._magnitude / max(self.tokens, 1)

    @property
    def moments(self) -> torch.Tensor:
        """mean(x xᵀ) [K, K]. Raises QuantizationError if they were not requested."""
        if self._moments is None:
            raise QuantizationError("these statistics were gathered without second moments")
        return self._moments / max(self.tokens, 1)


def output_error(change: torch.Tensor, moments: torch.Tensor) -> float:
    """The mean squared change of a layer's outputs, summed over outputs, if its weights change by `change` [N, K]:
    E|ΔW x|² = tr(ΔW E[x xᵀ] ΔWᵀ).
    """
    return float(((change @ moments) * change).sum())


# Tensors of one layer by their names within it, such as "mlp.up_proj.weight"; linear weights are [out, in].
LayerTensors = dict[str, torch.Tensor]
Observer = Callable[["Site", torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Site:
    """Activations that are the input of `linears`."""

    source: str
    """What can be scaled: a norm's weights, a linear layer's rows."""
    linears: tuple[str, ...]


ATTENTION_INPUT = Site("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
# A head's output is a weighted sum of values, so scaling a channel of the values scales it in their heads.
ATTENTION_OUTPUT = Site("self_attn.v_proj", ("self_attn.o_proj",))
MLP_INPUT = Site("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"))
MLP_OUTPUT = Site("mlp.up_proj", ("mlp.down_proj",))
SITES = (ATTENTION_INPUT, ATTENTION_OUTPUT, MLP_INPUT, MLP_OUTPUT)
LINEARS = tuple(linear for site in SITES for linear in site.linears)


def _unobserved(site: Site, inputs: torch.Tensor) -> None:
    """The observer of runs without statistics: does nothing."""


def layer_forward(
    config: ModelConfig,
    tensors: LayerTensors,
    hidden: torch.Tensor,
    cos_sin: torch.Tensor,
    observe: Observer = _unobserved,
) -> torch.Tensor:
    """Compute the hidden states [T, hidden] of one sequence after the layer from those before it.

    `cos_sin`: float32 [at least T, head_dim], see `rotary_table`. `observe` gets the inputs [T, K] of every site.
    """
    normed = _normed(hidden, tensors["input_layernorm.weight"], config.rms_eps)
    observe(ATTENTION_INPUT, normed)
    mixed = _attention(config, tensors, normed, cos_sin[: len(hidden)])
    observe(ATTENTION_OUTPUT, mixed)
    hidden = hidden + _linear(tensors, "self_attn.o_proj", mixed)
    normed = _normed(hidden, tensors["post_attention_layernorm.weight"], config.rms_eps)
    observe(MLP_INPUT, normed)
    gated = functional.silu(_linear(tensors, "mlp.gate_proj", normed)) * _linear(tensors, "mlp.up_proj", normed)
    observe(MLP_OUTPUT, gated)
    return hidden + _linear(tensors, "mlp.down_proj", gated)


def _attention(config: ModelConfig, tensors: LayerTensors, normed: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """The heads' outputs, [T, heads x head_dim]."""
    tokens, d = len(normed), config.head_dim
    query, key, value = (
        _linear(tensors, f"self_attn.{part}_proj", normed).view(tokens, -1, d).transpose(0, 1) for part in "qkv"
    )
    if config.attention.qk_norm:
        query = _normed(query, tensors["self_attn.q_norm.weight"], config.rms_eps)
        key = _normed(key, tensors["self_attn.k_norm.weight"], config.rms_eps)
    query, key = _rotated(query, cos_sin), _rotated(key, cos_sin)
    shared = config.num_heads // config.num_kv_heads
    mixed = functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(shared, dim=0),
        value.repeat_interleave(shared, dim=0),
        attn_mask=_allowed(tokens, config.attention.sliding_window),
    )
    return mixed.transpose(0, 1).reshape(tokens, -1)


def _allowed(tokens: int, window: int | None) -> torch.Tensor:
    """The attention mask, bool [T, T]: which tokens (columns) each token (row) attends to."""
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return allowed if window is None else allowed.triu(1 - window)


def _rotated(heads: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate the half-split pairs of heads [H, T, d] by their positions' angles."""
    cos, sin = cos_sin.chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    reference_rms_norm(x, weight, eps, out)
    return out


def _linear(tensors: LayerTensors, name: str, inputs: torch.Tensor) -> torch.Tensor:
    return functional.linear(inputs, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


Statistics = Mapping[Site, ActivationStatistics]
# The activation statistics that a method needs, by increasing cost of calibration.
Needs = Literal["nothing", "peaks", "moments"]


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A quantised linear layer: its tensors in the file, by suffix, and their values, float32 [out, in]."""

    parts: dict[str, torch.Tensor]
    values: torch.Tensor


class QuantizationMethod(ABC):
    """Contract: `quantize` changes a layer's outputs only by the rounding of its linear weights, and is deterministic.
    Settings are arguments of the constructor.
    """

    name: ClassVar[str]
    needs: ClassVar[Needs]
    default_dtype: ClassVar[torch.dtype]

    @abstractmethod
    def check(self, config: ModelConfig) -> None:
        """Raises QuantizationError for a model whose shapes the format cannot store."""

    @abstractmethod
    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        """Quantise every linear layer of one decoder layer; returned by name.

        Modifies `tensors` (float32): scales are folded into its norms and biases, which are stored in `dtype`.
        """

    @abstractmethod
    def quantization_config(self) -> dict[str, Any]:
        """The `quantization_config` of config.json, as the format's own tools write it."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The method's settings by name, for the record."""


def linear_inputs(config: ModelConfig) -> set[int]:
    """The numbers of inputs of a decoder layer's linear layers."""
    return {config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size}


def linear_outputs(config: ModelConfig) -> set[int]:
    """The numbers of outputs of a decoder layer's linear layers."""
    kv = config.num_kv_heads * config.head_dim
    return {config.hidden_size, config.num_heads * config.head_dim, kv, config.intermediate_size}


def tied_to_values(site: Site, figures: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Statistics [K] of a site's channels, where channels that must share a scale get their maximum.

    Query heads that share a KV head read the same values, so their channels share a scale.
    """
    if site is not ATTENTION_OUTPUT:
        return figures
    heads = figures.view(config.num_kv_heads, -1, config.head_dim)
    return heads.amax(dim=1, keepdim=True).expand_as(heads).reshape(-1)


def fold(tensors: LayerTensors, site: Site, scales: torch.Tensor, config: ModelConfig, dtype: torch.dtype) -> None:
    """Divide a site's activations by `scales` [K] > 0 at their source, and multiply the weights that read them.

    In exact arithmetic the outputs do not change. A norm is rounded to `dtype`, in which it is stored, and the weights
    are multiplied by the resulting divisor. Channels tied by `tied_to_values` must have equal scales.
    """
    weight = f"{site.source}.weight"
    if tensors[weight].dim() == 1:
        scales = _fold_into_norm(tensors, weight, scales, dtype)
    else:
        _fold_into_rows(tensors, site, scales, config)
    for linear in site.linears:
        tensors[f"{linear}.weight"] = tensors[f"{linear}.weight"] * scales


def _fold_into_norm(tensors: LayerTensors, name: str, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Divide the norm's weights. Returns the divisor [K] after rounding."""
    norm = tensors[name]
    divided = (norm / scales).to(dtype).float()
    usable = (divided != 0) & torch.isfinite(divided)
    tensors[name] = torch.where(usable, divided, norm)
    return torch.where(usable, norm / torch.where(usable, divided, 1.0), 1.0)


def _fold_into_rows(tensors: LayerTensors, site: Site, scales: torch.Tensor, config: ModelConfig) -> None:
    rows = scales
    if site is ATTENTION_OUTPUT:
        rows = scales.view(config.num_kv_heads, -1, config.head_dim)[:, 0].reshape(-1)
    tensors[f"{site.source}.weight"] = tensors[f"{site.source}.weight"] / rows[:, None]
    bias = f"{site.source}.bias"
    if bias in tensors:
        tensors[bias] = tensors[bias] / rows
