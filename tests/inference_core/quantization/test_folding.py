"""Scales that move from activations into weights change nothing but where the numbers are large."""

import pytest
import torch

from inference_core.models.transformer import rotary_table
from inference_core.quantization.method import ATTENTION_OUTPUT, SITES, Site, fold, layer_forward, tied_to_values
from tests.inference_core.quantization.layers import CONFIG, layer
from tests.inference_core.quantization.synthetic_layers import activations

HIDDEN_STATES = activations(24, CONFIG.hidden_size, seed=5)
COS_SIN = rotary_table(CONFIG, 24)


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.source)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_layer_with_folded_scales_gives_the_same_outputs(site: Site, dtype: torch.dtype) -> None:
    """However coarse the norm's own dtype: the weights take up what it was really divided by."""
    tensors = layer()
    expected = layer_forward(CONFIG, tensors, HIDDEN_STATES, COS_SIN)
    width = tensors[f"{site.linears[0]}.weight"].shape[1]
    scales = torch.exp(torch.randn(width, generator=torch.Generator().manual_seed(3)))
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    fold(tensors, site, tied_to_values(site, scales, CONFIG), CONFIG, dtype)
    assert not torch.equal(tensors[f"{site.linears[0]}.weight"], before[f"{site.linears[0]}.weight"])
    torch.testing.assert_close(layer_forward(CONFIG, tensors, HIDDEN_STATES, COS_SIN), expected, rtol=1e-4, atol=1e-4)


def test_a_folded_norm_is_stored_exactly_in_its_dtype() -> None:
    tensors = layer()
    fold(tensors, SITES[0], torch.full((CONFIG.hidden_size,), 3.0), CONFIG, torch.bfloat16)
    norm = tensors["input_layernorm.weight"]
    assert torch.equal(norm, norm.bfloat16().float())


def test_channels_of_query_heads_that_share_values_share_the_greatest_figure() -> None:
    figures = torch.arange(CONFIG.num_heads * CONFIG.head_dim).float()
    tied = tied_to_values(ATTENTION_OUTPUT, figures, CONFIG).view(CONFIG.num_heads, CONFIG.head_dim)
    assert torch.equal(tied[0], tied[1])
    assert torch.equal(tied[0], figures.view(CONFIG.num_heads, CONFIG.head_dim)[1])
    assert not torch.equal(tied[1], tied[2])


def test_a_norm_of_zero_keeps_its_channel_at_zero() -> None:
    tensors = layer()
    tensors["input_layernorm.weight"][7] = 0.0
    fold(tensors, SITES[0], torch.full((CONFIG.hidden_size,), 2.0), CONFIG, torch.float16)
    assert tensors["input_layernorm.weight"][7] == 0
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
