"""One decoder layer in float32: its computation, and the sources of its linear layers' inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from inference_core.model_config import ModelConfig
from inference_core.models.elementwise import reference_rms_norm

# Tensors of one layer by their names within it, such as "mlp.up_proj.weight"; linear weights are [out, in].
LayerTensors = dict[str, torch.Tensor]
Observer = Callable[["Site", torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Site:
    """Activations that are the input of `linears`. `source` produces them and can be scaled: a norm's weights, or the
    rows of a linear layer.
    """

    source: str
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

    `cos_sin`: float32 [at least T, head_dim], see `rotary_table`. `observe` is called with the inputs [T, K] of every
    site's linear layers.
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
    if config.qk_norm:
        query = _normed(query, tensors["self_attn.q_norm.weight"], config.rms_eps)
        key = _normed(key, tensors["self_attn.k_norm.weight"], config.rms_eps)
    query, key = _rotated(query, cos_sin), _rotated(key, cos_sin)
    shared = config.num_heads // config.num_kv_heads
    mixed = functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(shared, dim=0),
        value.repeat_interleave(shared, dim=0),
        attn_mask=_allowed(tokens, config.sliding_window),
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
