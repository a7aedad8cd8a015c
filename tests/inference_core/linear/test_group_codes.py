"""How far packing moves a weight from its file's value, for every encoding that is not packed as it is (SPEC QZ-05)."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_core.linear import panels
from inference_core.linear.linear import PanelLinear
from inference_core.linear.panels import PanelKind, int8_codes, pack, packing, panel_kind
from inference_core.loaders.block_formats import q4_z_blocks
from inference_core.loaders.packed_tensor import GROUP, PackedTensor, dequantize, group_codes
from inference_core.model_spec import Compute
from tests.inference_core.linear.packed_linears import packed
from tests.inference_core.tiny_gguf import random_blocks

HALF = 2.0**-11  # Relative error of rounding to float16.
FOUR_BITS = ["Q4_0", "Q4_1", "Q4_K", "Q4_Z"]
seeds = st.integers(0, 2**32 - 1)


def zero_point_tensor(seed: int, rows: int = 5, groups: int = 6) -> PackedTensor:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, groups * GROUP), np.uint8)
    scales = rng.uniform(1e-3, 0.1, (rows, groups)).astype(np.float16)
    blocks = q4_z_blocks(codes, scales, rng.integers(0, 16, (rows, groups), np.uint8))
    return PackedTensor("Q4_Z", codes.shape, blocks.view(np.uint8).reshape(rows, -1))


def ggml_tensor(kind: str, seed: int, rows: int = 5) -> PackedTensor:
    return PackedTensor(kind, (rows, 512), random_blocks(kind, rows, 512, seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FOUR_BITS)
@given(seed=seeds)
def test_packed_codes_with_float16_scales_are_the_files_values_within_their_rounding(kind: str, seed: int) -> None:
    """Q4_0 and Q4_1 exactly; Q4_K and Q4_Z up to the rounding of products that float16 cannot hold."""
    tensor = zero_point_tensor(seed) if kind == "Q4_Z" else ggml_tensor(kind, seed)
    packed = group_codes(tensor)
    codes = packed.codes.reshape(*packed.scale.shape, GROUP).astype(np.float64)
    scale, minimum = (v.astype(np.float16).astype(np.float64)[:, :, None] for v in (packed.scale, packed.minimum))

    error = np.abs(scale * codes + minimum - dequantize(tensor).reshape(codes.shape))

    exact = 1e-6 if kind in ("Q4_0", "Q4_1") else HALF  # Float32 itself rounds the sum.
    smallest = 2.0**-25 * (codes + 1)  # Below 2^-14 float16 has a fixed step.
    assert (error <= exact * (np.abs(scale) * codes + np.abs(minimum)) * (1 + 1e-3) + smallest).all()


@pytest.mark.parametrize(("kind", "scheme"), [(k, "int4") for k in FOUR_BITS] + [("Q4_0", "int4-centred")])
def test_four_bit_panels_hold_the_codes_of_the_file_where_kernels_read_them(kind: str, scheme: PanelKind) -> None:
    tensor = zero_point_tensor(1, 21) if kind == "Q4_Z" else ggml_tensor(kind, 1, 21)
    file = group_codes(tensor)
    groups = file.scale.shape[1]
    codes, scale, minimum = np.zeros((32, groups, GROUP), np.uint8), *np.zeros((2, 32, groups), np.float16)
    codes[:21], scale[:21], minimum[:21] = file.codes.reshape(21, groups, GROUP), file.scale, file.minimum

    panels = pack(tensor, scheme)

    if scheme == "int4":
        nibbles, halves = np.split(panels.reshape(2, groups, 320), [256], axis=2)
        found_scale, found_minimum = halves.view(np.float16).reshape(2, groups, 2, 16).transpose(2, 0, 3, 1)
        assert np.array_equal(found_minimum.reshape(32, groups), minimum)
    else:
        scales, nibbles = np.split(panels, [panels.shape[1] - 256 * groups], axis=1)
        found_scale = scales[:, : 32 * groups].view(np.float16).reshape(2, groups, 16).transpose(0, 2, 1)
    assert np.array_equal(found_scale.reshape(32, groups), scale)
    # Byte 64 j + 4 n + b: the codes of column n for inputs 8 j + b (low) and 8 j + 4 + b (high).
    bytes_of = nibbles.reshape(2, groups, 4, 16, 4).transpose(0, 3, 1, 2, 4).reshape(32, groups, 4, 4)
    assert np.array_equal(np.stack([bytes_of & 15, bytes_of >> 4], axis=3).reshape(codes.shape), codes)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q5_K", "Q6_K"])
@given(seed=seeds)
def test_wider_codes_move_by_at_most_half_a_step_of_eight_bits(kind: str, seed: int) -> None:
    tensor = ggml_tensor(kind, seed)
    codes, scale = int8_codes(tensor)
    exact = dequantize(tensor).reshape(*scale.shape, GROUP).astype(np.float64)

    error = np.abs(codes.reshape(exact.shape) * scale[:, :, None].astype(np.float64) - exact)

    step = np.abs(exact).max(axis=2, keepdims=True) / 127
    # The scale itself is rounded to float16, which moves the largest code by 127 x 2^-11 of a step.
    assert (error <= step * (0.5 + 127 * HALF + 1e-3) + 127 * 2.0**-25).all()


def test_eight_bit_codes_of_zeros_are_zeros() -> None:
    codes, scale = int8_codes(PackedTensor("F32", (1, GROUP), np.zeros((1, GROUP), np.float32)))
    assert not codes.any()
    assert not scale.any()


@pytest.mark.usefixtures("instruction_set")
@given(seed=seeds)
def test_integer_arithmetic_errs_at_most_by_what_its_roundings_allow(seed: int) -> None:
    """|y - Wx| <= sum over inputs of |w| x half a step of the activation's group, for exact weights."""
    tensor = ggml_tensor("Q4_1", seed)
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(3, 5)
    PanelLinear("int4-int8", torch.from_numpy(pack(tensor, "int4")), 512, 5, None).apply(x, out)

    weight = dequantize(tensor).astype(np.float64)
    activations = x.numpy().astype(np.float64)
    half_step = np.repeat(np.abs(activations).reshape(3, -1, GROUP).max(axis=2) / 254, GROUP, axis=1)
    packed = group_codes(tensor)
    terms = np.abs(packed.codes * np.repeat(packed.scale, GROUP, 1)) + np.abs(np.repeat(packed.minimum, GROUP, 1))
    # Float32 sums of 512 products of terms that partly cancel.
    bound = half_step @ np.abs(weight).T * 1.001 + np.abs(activations) @ terms.T * 1e-5
    assert (np.abs(out.numpy() - activations @ weight.T) <= bound).all()


@pytest.mark.parametrize(("kind", "compute"), [("Q4_0", "int4-int8"), ("Q4_1", "int4"), ("Q8_0", "int4-int8")])
def test_panels_packed_in_pieces_are_those_packed_at_once(
    kind: str, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = packed(kind, 103, 64)
    scheme = panel_kind(tensor, compute)
    whole = pack(tensor, scheme)
    pieces: list[int] = []
    one = panels._packed
    monkeypatch.setattr(panels, "_packed", lambda part, kind: pieces.append(part.shape[0]) or one(part, kind))
    monkeypatch.setattr(panels, "_PIECE_WEIGHTS", 3000)  # less than three panels
    assert np.array_equal(pack(tensor, scheme), whole)
    assert pieces == [32, 32, 32, 7]
    with ThreadPoolExecutor(2) as pool:
        assert np.array_equal(packing(tensor, scheme, pool)(), whole)
