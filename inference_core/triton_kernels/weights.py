"""Weights as the CUDA kernels read them, and the tile sizes of the linear kernels. No triton.

4 bits: AWQ, GPTQ and GGUF tensors are repacked. Inputs are cut into blocks of 256. Word j of block b and output n holds
eight codes: bits 4 i to 4 i + 3 are the code of input 256 b + 64 i + 2 j, and 16 bits above that of the next input, so
that two inputs of a matrix instruction's register are unpacked at once. Over all j these are 64 successive inputs, over
half of them 32, one group. A tile of outputs is contiguous in memory.
w[n, k] = scale[k / group, n] * (code[n, k] - 8) + offset[k / group, n], scales and offsets as float16. Symmetric
tensors (GGUF's Q4_0) have no offsets; one of AWQ or GPTQ is scale * (8 - zero point). float16 rounds offsets, and the
scales of Q4_K, by at most one part in 2**11, which is less than a hundredth of a step between codes.

8 bits: INT8 or FP8 E4M3, with a scale per output channel or per block of 128 x 128, as in checkpoints. Channel scales:
Dettmers et al., "LLM.int8()", 2022, and Xiao et al., "SmoothQuant", 2023. Block scales: DeepSeek-AI, "DeepSeek-V3
Technical Report", 2024, section 3.3.

Low-rank adapters: the factors of one layer in all slots, and which rows use which slot.

Tiles: few rows need many concurrent programs to keep memory busy, many rows need large tiles to keep matrix
instructions busy. The tables are the best of those that were measured on an H200 and fit in 96 KiB of shared memory,
which the smallest device has. Every launcher accepts an override.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.packed_tensor import GROUP, PackedTensor, group_codes


def dense_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Write (or add) x W^T + bias to out: x [M, K], weight [N, K], bias [N], out [M, N], all of one dtype.

    `out` may be some columns of a wider matrix. What is added is added in its precision, before it is rounded.
    """
    if accumulate:
        torch.addmm(out if bias is None else out + bias, x, weight.T, out=out)
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


SCALE_BLOCK = 128
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True, slots=True)
class EightBitWeight:
    """A weight of 8-bit codes."""

    codes: torch.Tensor
    """int8 or float8_e4m3fn [N, K]."""
    scales: torch.Tensor
    """float32 [N], or [ceil(N / 128), ceil(K / 128)] (E4M3 only)."""

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        blocks = (-(-outputs // SCALE_BLOCK), -(-inputs // SCALE_BLOCK))
        allowed = [(outputs,), blocks] if self.codes.dtype == torch.float8_e4m3fn else [(outputs,)]
        if tuple(self.scales.shape) not in allowed:
            raise ValueError(
                f"scales of shape {tuple(self.scales.shape)} for {self.codes.dtype} codes [{outputs}, {inputs}]; "
                f"allowed are {' and '.join(map(str, allowed))}"
            )

    @property
    def blockwise(self) -> bool:
        return bool(self.scales.dim() == 2)


# Of a row that a kernel of gated activations quantises in one piece.
MOST_QUANTIZED_INPUTS = 32768


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations as 8-bit layers with scales per channel read them."""

    codes: torch.Tensor
    """int8 or float8_e4m3fn [M, K], contiguous."""
    scales: torch.Tensor
    """float32 [M]."""

    @classmethod
    def empty(cls, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> "QuantizedRows":
        """Uninitialised codes of `dtype`, and scales for them."""
        scales = torch.empty(shape[0], dtype=torch.float32, device=device)
        return cls(torch.empty(shape, dtype=dtype, device=device), scales)


def largest(dtype: torch.dtype) -> float:
    """The largest code of `dtype` that is used. Raises ValueError for other dtypes."""
    if dtype not in _LARGEST:
        raise ValueError(f"cannot quantise to {dtype}; possible are {' and '.join(map(str, _LARGEST))}")
    return _LARGEST[dtype]


def quantize_channels(weight: torch.Tensor, dtype: torch.dtype) -> EightBitWeight:
    """Round a floating weight [N, K] to the nearest codes, with one scale per output."""
    values = weight.float()
    return EightBitWeight(*rounded(values, values.abs().amax(dim=1, keepdim=True), dtype))


def quantize_blocks(weight: torch.Tensor) -> EightBitWeight:
    """Round a floating weight [N, K] to the nearest E4M3 codes, with one scale per block of 128 x 128."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % SCALE_BLOCK, 0, -outputs % SCALE_BLOCK))
    blocks = padded.unflatten(0, (-1, SCALE_BLOCK)).unflatten(2, (-1, SCALE_BLOCK))
    peak = blocks.abs().amax(dim=(1, 3))
    spread = spread_blocks(peak, outputs, inputs)
    codes, _ = rounded(weight.float(), spread, torch.float8_e4m3fn)
    return EightBitWeight(codes, peak / largest(torch.float8_e4m3fn))


def spread_blocks(scales: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """[ceil(N / 128), ceil(K / 128)] -> [N, K]: repeat each entry over its block."""
    wide = scales.repeat_interleave(SCALE_BLOCK, dim=0).repeat_interleave(SCALE_BLOCK, dim=1)
    return wide[:outputs, :inputs]


def rounded(values: torch.Tensor, peak: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Round float32 values, of magnitudes up to `peak` (broadcast), to codes of `dtype` and scales (peak's columns).

    Ties go to even codes.
    """
    limit = largest(dtype)
    inverse = torch.where(peak > 0, limit / peak, 0.0)
    scaled = (values * inverse).clamp(-limit, limit)
    codes = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return codes, (peak / limit)[..., 0]


BLOCK = 256  # inputs per block
WORDS = 32  # per block and output
NIBBLES = 8
KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q4_Z")
_MIDDLE = 8  # the code of zero without an offset
_GROUPS_PER_BLOCK = BLOCK // GROUP

Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Int4Arrays:
    """Arrays of the weight cache. The groups cover whole blocks: inputs beyond K have codes of 8 and any scale."""

    codes: NDArray[np.int32]
    """int32 [blocks, N, 32]."""
    scales: Halves
    """float16 [groups, N] or None."""
    offsets: Halves | None
    """float16 [groups, N] or None."""


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [N outputs, K inputs] of `Int4Arrays` as tensors on one device."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    in_features: int

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[1])

    @property
    def group_size(self) -> int:
        """Inputs per scale: 32, 64, 128 or 256."""
        return group_size(self.codes, self.scales)

    @classmethod
    def load(cls, arrays: Int4Arrays, in_features: int, device: torch.device | str) -> "Int4Weight":
        """Copy to `device`."""
        offsets = None if arrays.offsets is None else torch.tensor(arrays.offsets, device=device)
        return cls(
            torch.tensor(arrays.codes, device=device), torch.tensor(arrays.scales, device=device), offsets, in_features
        )


def group_size(codes: torch.Tensor, scales: torch.Tensor) -> int:
    """Inputs per row of `scales` [groups, N], for `codes` [blocks, N, 32]."""
    return int(codes.shape[0]) * BLOCK // int(scales.shape[0])


def pack_int4(tensor: PackedTensor) -> Int4Arrays:
    """Repack a Q4_0, Q4_1, Q4_K or Q4_Z tensor [N, K]; codes are unchanged.

    Neighbouring groups with equal scales are merged, up to a block, so AWQ and GPTQ tensors get their groups of 128
    back. Raises ModelFileError for other kinds and for scales that float16 cannot hold.
    """
    if tensor.kind not in KINDS:
        raise ModelFileError(f"a tensor of kind {tensor.kind} has no 4-bit groups; kinds that have are {KINDS}")
    weights = group_codes(tensor)
    columns = weights.codes.shape[1]
    missing = -columns % BLOCK
    codes = np.pad(weights.codes, ((0, 0), (0, missing)), constant_values=_MIDDLE)
    scales = _padded_halves(weights.scale, missing // GROUP)
    offsets = _padded_halves(weights.minimum + np.float32(_MIDDLE) * weights.scale, missing // GROUP)
    merged = _mergeable(scales, offsets)
    # [N, groups] -> [groups, N]
    scales = np.ascontiguousarray(scales[:, ::merged].T)
    offsets = np.ascontiguousarray(offsets[:, ::merged].T)
    return Int4Arrays(_words(codes), scales, offsets if offsets.any() else None)


def _padded_halves(values: NDArray[np.float32], groups: int) -> Halves:
    """float16 [N, groups + more]; padding repeats the last group, so that it never prevents merging."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelFileError(f"scales or offsets reach {np.abs(values).max():g}; float16 holds up to 65504")
    return np.pad(halves, ((0, 0), (0, groups)), mode="edge")


def _mergeable(scales: Halves, offsets: Halves) -> int:
    """How many adjacent groups of 32 always have equal scales and offsets: 1, 2, 4 or 8."""
    count = 1
    while count < _GROUPS_PER_BLOCK:
        runs = [a.reshape(len(a), -1, 2 * count) for a in (scales, offsets)]
        if any((run != run[:, :, :1]).any() for run in runs):
            break
        count *= 2
    return count


def _words(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """[N, K] -> [blocks, N, 32]."""
    nibbles = codes.reshape(len(codes), -1, NIBBLES // 2, WORDS, 2).transpose(1, 0, 2, 3, 4).astype(np.uint32)
    words = np.zeros((nibbles.shape[0], nibbles.shape[1], WORDS), np.uint32)
    for i in range(NIBBLES // 2):
        words |= nibbles[:, :, i, :, 0] << np.uint32(4 * i)
        words |= nibbles[:, :, i, :, 1] << np.uint32(4 * i + 16)
    return words.view(np.int32)


_MAX_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Int4Tile:
    """`outputs` and `rows` of a program, powers of two from 16; `splits` of the inputs. One row has no stages."""

    outputs: int
    rows: int
    warps: int
    stages: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class ScaledTile:
    """Sizes of one program, powers of two."""

    rows: int
    outputs: int
    inputs: int
    """Inputs of a step of the sums."""
    warps: int
    stages: int
    splits: int = 1
    """Parts of the inputs, as for `Int4Tile`."""


def choose_int4_tile(rows: int, outputs: int, inputs: int, *, hopper: bool = True) -> Int4Tile:
    """Choose a tile for x [rows, inputs] and `outputs` columns. `hopper`: for capability 9.0 and above; below, the
    compiler spills some of these tiles."""
    blocks = -(-inputs // BLOCK)
    # Measured on an H200: the kernel for one row is faster only for small weights.
    if rows == 1 and not (hopper and outputs * inputs >= 1 << 25):
        return Int4Tile(32, 1, warps=2, stages=1, splits=choose_splits(-(-outputs // 32), blocks, 1024))
    if rows <= 16:
        if not hopper:
            return Int4Tile(32, 16, warps=2, stages=4, splits=choose_splits(-(-outputs // 32), blocks, 512))
        return Int4Tile(64, 16, warps=4, stages=3, splits=choose_splits(-(-outputs // 64), blocks, 384))
    if rows <= 32:
        width = 128 if outputs * inputs >= 1 << 25 else 64
        return Int4Tile(width, 32, width // 16, stages=3, splits=choose_splits(-(-outputs // width), blocks, 200))
    tiles = -(-outputs // 64) * -(-rows // 64)
    return Int4Tile(64, 64, warps=4 if hopper else 8, stages=2, splits=choose_splits(tiles, blocks, 192))


def choose_scaled_tile(rows: int, outputs: int, inputs: int, *, blockwise: bool) -> ScaledTile:
    """Choose a tile for 8-bit operands; `blockwise` scales need registers for a second tile of sums, so other
    scales have wider tiles, and no splits where 96 programs do without."""
    steps, large = -(-inputs // 128), -(-outputs // 128) * -(-rows // 128)
    if rows <= 16:
        return ScaledTile(16, 32, 128, warps=4, stages=5, splits=choose_splits(-(-outputs // 32), steps, 384))
    wide = ScaledTile(64, 128, 128, warps=8, stages=4)
    if rows <= 64:
        tiles = -(-outputs // 64)
        if not blockwise and tiles >= 96:
            return wide if tiles >= 384 else ScaledTile(64, 64, 128, warps=4, stages=5)
        return ScaledTile(64, 64, 128, warps=4, stages=5, splits=choose_splits(tiles, steps, 192))
    if large < 96:  # too few large tiles for the processors
        splits = choose_splits(-(-outputs // 64) * -(-rows // 64), steps // 32, 192)
        return ScaledTile(64, 64, 128, warps=4, stages=5, splits=splits)
    if large < 128 and not blockwise:
        return wide
    return ScaledTile(128, 64 if blockwise else 128, 128, warps=8, stages=3)


def choose_splits(tiles: int, steps: int, programs: int) -> int:
    """How many programs share the sums of each of `tiles`, so that there are `programs` in total: a power of two."""
    splits = 1
    while splits < _MAX_SPLITS and tiles * splits < programs and 2 * splits <= steps:
        splits *= 2
    return splits


@dataclass(frozen=True, slots=True)
class LowRankSlots:
    """The factors of the adapters in S slots for one fused projection of K inputs and N outputs, at fixed addresses.

    The projection has P parts (q, k and v): part p has the outputs `borders[p]` to `borders[p + 1]` and its own
    factors.
    """

    down: torch.Tensor
    """A [S, P, R, K] in the activations' dtype."""
    up: torch.Tensor
    """B^T [S, R, N] in the activations' dtype."""
    scales: torch.Tensor
    """float32 in the shape of `ranks`."""
    ranks: torch.Tensor
    """int32 [S, at least P]: how many of the R ranks are used; the rest may hold anything."""
    borders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LowRankRows:
    """Which rows of a step use which slot. Rows in no tile have no adapter."""

    rows: torch.Tensor
    """int32 [at least their count]: the rows, grouped by slot."""
    tiles: torch.Tensor
    """int32 [programs, 3]: cuts `rows` into (first index, number of rows, at most `tile_rows`, slot). The slot
    `NO_SLOT` marks an empty tile.
    """
    tile_rows: int
