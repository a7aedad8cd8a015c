"""Tensors of checkpoints become layers on a device, through arrays that a weight cache can keep."""

from pathlib import Path

import numpy as np
import pytest
import torch

from inference_core.linear.device import (
    DenseLinear,
    DeviceScheme,
    EightBitLinear,
    Int4Linear,
    device_scheme,
    load_device,
    pack_device,
)
from inference_core.loaders.block_formats import scaled_blocks
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loaders.weight_cache import WeightCache
from inference_core.triton_kernels.weights import spread_blocks
from tests.inference_core.linear.packed_linears import packed

LAYERS = {
    "dense": DenseLinear,
    "int4": Int4Linear,
    "int8": EightBitLinear,
    "fp8": EightBitLinear,
    "fp8-blocks": EightBitLinear,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("scheme", LAYERS)
def test_a_layer_that_went_through_the_cache_is_close_to_its_tensor(
    scheme: DeviceScheme, biased: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    tensor = packed("Q4_1", 40, 256)
    bias = torch.linspace(-1, 1, 40) if biased else None
    arrays = WeightCache(tmp_path).load_or_build("f", "l", lambda: iter(pack_device(tensor, scheme, dtype).items()))
    layer = load_device(arrays, scheme, 256, bias, "cpu", dtype)
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = torch.empty(7, 40, dtype=dtype)

    layer.apply(x, out)

    assert isinstance(layer, LAYERS[scheme])
    exact = x.float() @ torch.from_numpy(np.array(dequantize(tensor))).T + (0 if bias is None else bias)
    # What the weights' or the activations' rounding may do: SPEC QZ-09 asks for a cosine of 0.99.
    assert torch.cosine_similarity(out.float(), exact, dim=1).min() > 0.995


def test_a_tensor_without_codes_of_four_bits_stays_dense() -> None:
    assert device_scheme(packed("Q8_0", 4, 64), "int4") == "dense"
    assert device_scheme(packed("F32", 4, 64), "int4") == "dense"
    assert device_scheme(packed("Q4_0", 4, 64), "int4") == "int4"
    assert device_scheme(packed("Q8_0", 4, 64), "fp8") == "fp8"


def eight_bit_tensor(kind: str, scales: np.ndarray) -> PackedTensor:
    """[rows, 32 n] for scales [rows, n], codes random."""
    rows, groups = scales.shape
    bits = np.random.default_rng(1).integers(0, 0x7F, (rows, 32 * groups), np.uint8)
    codes = bits.view(np.int8) if kind == "S8" else bits
    blocks = scaled_blocks(codes, scales.astype(np.float32)).view(np.uint8).reshape(rows, -1)
    return PackedTensor(kind, codes.shape, blocks)  # type: ignore[arg-type]


PER_CHANNEL = np.linspace(0.01, 0.02, 200)[:, None].repeat(8, axis=1)
PER_BLOCK = np.array([[0.01, 0.02], [0.03, 0.04]]).repeat(128, axis=0).repeat(4, axis=1)[:200]


@pytest.mark.parametrize(
    ("kind", "scheme", "scales"),
    [
        ("S8", "int8", PER_CHANNEL),
        ("F8", "fp8", PER_CHANNEL),
        ("F8", "fp8", PER_BLOCK),
        ("F8", "fp8-blocks", PER_BLOCK),
    ],
    ids=["INT8", "FP8 channels", "FP8 blocks", "FP8 blocks as asked"],
)
def test_codes_of_eight_bits_are_kept_as_the_file_has_them(kind: str, scheme: DeviceScheme, scales: np.ndarray) -> None:
    tensor = eight_bit_tensor(kind, scales)
    layer = load_device(pack_device(tensor, scheme, torch.float32), scheme, 256, None, "cpu", torch.float32)
    assert isinstance(layer, EightBitLinear)
    weight = layer.weight
    spread = spread_blocks(weight.scales, 200, 256) if weight.blockwise else weight.scales[:, None]
    assert weight.blockwise == (scales is PER_BLOCK)
    assert np.array_equal((weight.codes.float() * spread).numpy(), dequantize(tensor))


def test_codes_with_scales_of_another_shape_are_quantised_again() -> None:
    tensor = eight_bit_tensor("S8", np.random.default_rng(2).uniform(0.01, 0.02, (200, 8)))
    layer = load_device(pack_device(tensor, "int8", torch.float32), "int8", 256, None, "cpu", torch.float32)
    assert isinstance(layer, EightBitLinear)
    restored = layer.weight.codes.float() * layer.weight.scales[:, None]
    assert (restored - torch.from_numpy(dequantize(tensor))).abs().max() <= layer.weight.scales.max() * 0.51
