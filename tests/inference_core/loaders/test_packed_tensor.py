"""Decoding of every supported kind, against the `gguf` package and torch."""

import gguf.quants
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from inference_core.loaders.block_formats import BLOCK_DTYPES, BLOCK_ELEMENTS
from inference_core.loaders.packed_tensor import (
    PackedTensor,
    bfloat16_to_float32,
    dequantize,
    float32_to_bfloat16,
)
from tests.inference_core.tiny_gguf import random_blocks


@pytest.mark.parametrize("kind", sorted(BLOCK_DTYPES))
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 4))
def test_random_blocks_decode_to_the_same_bits_as_the_gguf_package(
    kind: str, seed: int, rows: int, blocks: int
) -> None:
    columns = blocks * BLOCK_ELEMENTS[kind]
    data = random_blocks(kind, rows, columns, seed)

    values = dequantize(PackedTensor(kind, (rows, columns), data))

    np.testing.assert_array_equal(values, gguf.quants.dequantize(data, GGMLQuantizationType[kind]))


def test_a_tensor_larger_than_one_decoding_piece_decodes_whole() -> None:
    data = random_blocks("Q4_1", 300, 576, seed=1)

    values = dequantize(PackedTensor("Q4_1", (300, 576), data))

    np.testing.assert_array_equal(values, gguf.quants.dequantize(data, GGMLQuantizationType.Q4_1))


def test_rows_can_be_taken_before_decoding() -> None:
    data = random_blocks("Q6_K", 8, 512, seed=2)
    whole = dequantize(PackedTensor("Q6_K", (8, 512), data))

    some = dequantize(PackedTensor("Q6_K", (3, 512), data[[5, 0, 5]]))

    np.testing.assert_array_equal(some, whole[[5, 0, 5]])


@pytest.mark.parametrize(("kind", "dtype"), [("F32", np.float32), ("F16", np.float16)])
def test_plain_kinds_keep_their_values(kind: str, dtype: type) -> None:
    data = np.linspace(-3, 3, 24, dtype=np.float32).astype(dtype).reshape(4, 6)

    values = dequantize(PackedTensor(kind, (4, 6), data))

    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, data.astype(np.float32))


def test_bfloat16_rounds_and_widens_as_torch_does() -> None:
    bits = np.random.default_rng(3).integers(0, 2**32, 100_000, np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, 1.00390625, 1.01171875], np.float32)
    values = np.concatenate([bits.view(np.float32), special])

    rounded = bfloat16_to_float32(float32_to_bfloat16(values))

    np.testing.assert_array_equal(rounded, torch.from_numpy(values).to(torch.bfloat16).float().numpy())


def test_many_values_of_any_bits_round_as_torch_does_whatever_their_order_in_memory() -> None:
    # More than are converted at a time, with NaNs, infinities, and numbers that round up to infinity.
    bits = np.random.default_rng(3).integers(0, 2**32, size=(601, 500), dtype=np.uint32)
    bits[::7, ::5] |= 0x7F80_0000
    values = bits.view(np.float32)

    for ordered in (values, values.T):
        rounded = bfloat16_to_float32(float32_to_bfloat16(ordered))
        expected = torch.from_numpy(ordered.copy()).to(torch.bfloat16).float().numpy()
        np.testing.assert_array_equal(rounded, expected)


def test_bfloat16_bits_decode_by_shape() -> None:
    values = np.array([[1.0, -2.5], [0.0, 384.0]], np.float32)

    decoded = dequantize(PackedTensor("BF16", (2, 2), float32_to_bfloat16(values)))

    np.testing.assert_array_equal(decoded, values)
