"""What checkpoints hold in 4 or 8 bits is multiplied as it is, not rounded a second time (SPEC QZ-03, QZ-04)."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pytest
import torch

from inference_core.device.quantized_linear import EightBitDeviceLinear, Int4DeviceLinear
from inference_core.device.weights import eight_bit_linear, int4_linear
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loaders.random_checkpoint import RandomCheckpoint
from inference_core.loaders.scaled_blocks import scaled_blocks
from inference_core.models.weights import Projection
from tests.inference_core.device.test_device_loading import CONFIG, CPU

QKV = Projection("layers.0.qkv", tuple(f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"))


class EightBitCheckpoint(RandomCheckpoint):
    """Random codes with scales of their own: per output, or per block of 128 x 128."""

    def __init__(self, kind: str, blockwise: bool) -> None:
        super().__init__(CONFIG, "BF16")
        self._eight_bits = kind
        self._blockwise = blockwise

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return {name: self._rounded(t) if name in QKV.tensors else t for name, t in super().tensors.items()}

    def _rounded(self, tensor: PackedTensor) -> PackedTensor:
        rows, columns = tensor.shape
        rng = np.random.default_rng(rows)
        # Below 120: of E4M3's codes none is NaN.
        codes = rng.integers(0, 120, (rows, columns)).astype(np.int8 if self._eight_bits == "S8" else np.uint8)
        if self._blockwise:
            grid = rng.uniform(0.5, 1.0, (-(-rows // 128), -(-columns // 128))).astype(np.float32)
            scales = np.repeat(np.repeat(grid, 128, 0), 4, 1)[:rows, : columns // 32]
        else:
            scales = np.repeat(rng.uniform(0.5, 1.0, (rows, 1)).astype(np.float32), columns // 32, 1)
        blocks = scaled_blocks(codes, np.ascontiguousarray(scales))
        return PackedTensor(self._eight_bits, tensor.shape, blocks.view(np.uint8).reshape(rows, -1))


@pytest.mark.parametrize(
    ("kind", "codes", "blockwise"),
    [
        ("S8", torch.int8, False),
        ("F8", torch.float8_e4m3fn, False),
        ("F8", torch.float8_e4m3fn, True),
    ],
)
def test_eight_bit_codes_and_scales_stay_what_they_are(kind: str, codes: torch.dtype, blockwise: bool) -> None:
    checkpoint = EightBitCheckpoint(kind, blockwise)
    linear = eight_bit_linear(codes, torch.float32, CPU)(checkpoint, QKV)
    assert isinstance(linear, EightBitDeviceLinear)
    assert linear.weight.blockwise == blockwise
    weight = np.concatenate([dequantize(checkpoint.tensors[name]) for name in QKV.tensors])
    scales = linear.weight.scales
    if blockwise:
        scales = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: len(weight), : weight.shape[1]]
    else:
        scales = scales[:, None]
    np.testing.assert_array_equal((linear.weight.codes.float() * scales).numpy(), weight)


def test_scales_that_no_kernel_takes_are_rounded_anew() -> None:
    linear = eight_bit_linear(torch.int8, torch.float32, CPU)(EightBitCheckpoint("S8", blockwise=True), QKV)
    assert isinstance(linear, EightBitDeviceLinear)
    assert linear.weight.scales.shape == (len(linear.weight.codes),)


def test_four_bit_projections_give_their_dequantised_products() -> None:
    checkpoint = RandomCheckpoint(CONFIG, "Q4_0", seed=3)
    linear = int4_linear(torch.float32, CPU)(checkpoint, QKV)
    assert isinstance(linear, Int4DeviceLinear)
    weight = torch.from_numpy(np.concatenate([dequantize(checkpoint.tensors[name]) for name in QKV.tensors]))
    x = torch.randn(5, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(linear.apply(x), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_what_is_not_four_bits_is_multiplied_dequantised() -> None:
    checkpoint = RandomCheckpoint(CONFIG, "BF16")
    assert not isinstance(int4_linear(torch.float32, CPU)(checkpoint, QKV), Int4DeviceLinear)
