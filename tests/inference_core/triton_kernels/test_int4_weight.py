"""Repacking 4-bit tensors for CUDA keeps every code, and of the rest what float16 holds."""

import numpy as np
import pytest
import torch

from inference_core.errors import ModelFileError
from inference_core.loaders.packed_tensor import PackedTensor, dequantize, group_codes
from inference_core.triton_kernels.reference import dequantized_int4
from inference_core.triton_kernels.weights import Int4Weight, pack_int4
from tests.inference_core.triton_kernels.int4_tensors import KINDS, int4_tensor


def unpacked(tensor: PackedTensor) -> np.ndarray:
    weight = Int4Weight.load(pack_int4(tensor), tensor.shape[1], "cpu")
    return dequantized_int4(weight.codes, weight.scales, weight.offsets, tensor.shape[1]).numpy()


@pytest.mark.parametrize("inputs", [256, 768])
@pytest.mark.parametrize("kind", KINDS)
def test_repacked_weights_differ_by_no_more_than_the_rounding_of_scales_and_offsets(kind: str, inputs: int) -> None:
    tensor = int4_tensor(kind, 48, inputs)
    groups = group_codes(tensor)
    offset = np.abs(groups.minimum + 8 * groups.scale)
    bound = np.repeat(2.0**-11 * (8 * np.abs(groups.scale) + offset), 32, axis=1) + 1e-7
    assert (np.abs(unpacked(tensor) - dequantize(tensor)) <= bound).all()


def test_two_successive_inputs_lie_16_bits_apart() -> None:
    """Where the kernels look for input 256 b + 64 i + 2 j + h."""
    tensor = int4_tensor("Q4_1", 3, 512)
    codes, words = group_codes(tensor).codes, pack_int4(tensor).codes.view(np.uint32)
    for b, i, j, h in [(0, 0, 0, 0), (0, 0, 0, 1), (0, 3, 31, 1), (1, 2, 5, 0), (1, 1, 16, 1)]:
        found = words[b, :, j] >> np.uint32(4 * i + 16 * h) & np.uint32(15)
        assert np.array_equal(found, codes[:, 256 * b + 64 * i + 2 * j + h])


def test_symmetric_weights_are_kept_exactly_and_need_no_offsets() -> None:
    tensor = int4_tensor("Q4_0", 20, 512)
    assert pack_int4(tensor).offsets is None
    assert np.array_equal(unpacked(tensor), dequantize(tensor))


@pytest.mark.parametrize("inputs", [32, 96, 288, 576])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_Z, groups of 32"])
def test_inputs_need_not_fill_the_last_block(kind: str, inputs: int) -> None:
    tensor = int4_tensor(kind, 5, inputs)
    np.testing.assert_allclose(unpacked(tensor), dequantize(tensor), atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "inputs", "size"),
    [("Q4_Z, groups of 32", 512, 32), ("Q4_Z, groups of 128", 512, 128), ("Q4_Z, groups of 128", 384, 128)],
)
def test_groups_are_as_large_as_the_checkpoint_had_them(kind: str, inputs: int, size: int) -> None:
    arrays = pack_int4(int4_tensor(kind, 16, inputs))
    assert Int4Weight.load(arrays, inputs, "cpu").group_size == size


def test_four_bits_and_the_scales_are_all_that_is_kept() -> None:
    arrays = pack_int4(int4_tensor("Q4_Z, groups of 128", 64, 1024))
    stored = sum(a.nbytes for a in (arrays.codes, arrays.scales, arrays.offsets) if a is not None)
    assert stored == 64 * 1024 // 2 + 64 * 1024 // 128 * 4


def test_a_tensor_without_groups_of_four_bits_is_refused() -> None:
    with pytest.raises(ModelFileError, match="Q8_0 has no 4-bit groups"):
        pack_int4(PackedTensor("Q8_0", (4, 64), np.zeros((4, 68), np.uint8)))


def test_scales_that_float16_cannot_hold_are_refused() -> None:
    tensor = int4_tensor("Q4_1", 4, 64)
    blocks = tensor.blocks.copy()
    blocks["d"], blocks["m"] = 60000.0, 0
    huge = PackedTensor("Q4_1", (4, 64), blocks.view(np.uint8).reshape(4, -1))
    with pytest.raises(ModelFileError, match="float16 holds up to 65504"):
        pack_int4(huge)


def test_loading_copies_to_the_device_named() -> None:
    weight = Int4Weight.load(pack_int4(int4_tensor("Q4_1", 4, 64)), 64, torch.device("meta"))
    assert weight.codes.is_meta
    assert (weight.out_features, weight.in_features, weight.group_size) == (4, 64, 32)
