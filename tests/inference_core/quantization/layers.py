"""A decoder layer at full precision, and what its linear layers see."""

import torch

from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.quantization.method import SITES, ActivationStatistics, LayerTensors, Site, layer_forward
from tests.inference_core.quantization.synthetic_layers import weights
from tests.inference_core.quantization.tiny_model import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS

CONFIG = ModelConfig(
    architecture="qwen2",
    vocab_size=300,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position=128,
    rms_eps=1e-6,
    rope=RotaryEmbedding(theta=1e4),
    attention=AttentionFeatures(qkv_bias=True),
)


def seen(inputs: torch.Tensor) -> ActivationStatistics:
    """The statistics of inputs [tokens, K]."""
    statistics = ActivationStatistics(inputs.shape[1], moments=True)
    statistics.add(inputs)
    return statistics


def layer(seed: int = 0) -> LayerTensors:
    """A whole decoder layer of `CONFIG`, biases included."""
    generator = torch.Generator().manual_seed(seed)
    kv = KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    tensors = {f"{name}.weight": weights(*shape, seed + i) for i, (name, shape) in enumerate(shapes.items())}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{norm}.weight"] = 0.5 + torch.rand(HIDDEN, generator=generator)
    for part, size in (("q", HEADS * HEAD_DIM), ("k", kv), ("v", kv)):
        tensors[f"self_attn.{part}_proj.bias"] = torch.randn(size, generator=generator) / 4
    return tensors


def layer_statistics(
    tensors: LayerTensors, hidden: torch.Tensor, cos_sin: torch.Tensor
) -> dict[Site, ActivationStatistics]:
    """What the layer's linear layers are given when it reads `hidden` [tokens, HIDDEN]."""
    gathered = {
        site: ActivationStatistics(tensors[f"{site.linears[0]}.weight"].shape[1], moments=True) for site in SITES
    }
    layer_forward(CONFIG, tensors, hidden, cos_sin, lambda site, x: gathered[site].add(x))
    return gathered
