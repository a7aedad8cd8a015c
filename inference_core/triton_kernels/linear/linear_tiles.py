"""Tile sizes of the linear kernels: warps, pipeline stages, and splits of the sums.

The tables follow from registers, shared memory (96 KiB on the smallest device) and arithmetic, not from a measurement:
few rows need many concurrent programs to keep memory busy, many rows need large tiles to keep matrix instructions busy.
Every launcher accepts an override.
"""

from dataclasses import dataclass

from inference_core.triton_kernels.linear.int4_weight import BLOCK

SMALL_ROWS = 4
# Programs that saturate the memory of the largest devices: about two for each of 132 to 148 processors.
_PROGRAMS = 256
_MAX_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Int4Tile:
    """`outputs` and `rows` of one program, powers of two, of at least 16 from `SMALL_ROWS` on; `splits` of the
    inputs."""

    outputs: int
    rows: int
    warps: int
    stages: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class ScaledTile:
    """`rows`, `outputs` and `inputs` (a step of the sums) of one program, powers of two; `splits` as above."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    splits: int = 1


def choose_int4_tile(rows: int, outputs: int, inputs: int) -> Int4Tile:
    """Choose a tile for x [rows, inputs] and `outputs` columns."""
    blocks = -(-inputs // BLOCK)
    if rows <= SMALL_ROWS:
        return Int4Tile(32, 1 << (rows - 1).bit_length(), warps=4, stages=1, splits=choose_splits(outputs, 32, blocks))
    if rows <= 16:
        return Int4Tile(32, 16, warps=2, stages=3, splits=choose_splits(outputs, 32, blocks))
    if rows <= 32:
        return Int4Tile(32, 32, warps=2, stages=3, splits=choose_splits(outputs, 32, blocks))
    return Int4Tile(64, 64, warps=4, stages=3, splits=choose_splits(outputs, 64, blocks))


def choose_scaled_tile(rows: int, outputs: int, inputs: int, *, blockwise: bool) -> ScaledTile:
    """Choose a tile for 8-bit operands; `blockwise` scales need registers for a second tile of sums."""
    if rows <= 16:
        return ScaledTile(16, 64, 128, warps=4, stages=4, splits=choose_splits(outputs, 64, -(-inputs // 128)))
    if rows <= 64:
        return ScaledTile(64, 64, 128, warps=4, stages=3)
    return ScaledTile(128, 64 if blockwise else 128, 128, warps=8, stages=3)


def choose_splits(outputs: int, tile: int, steps: int) -> int:
    """How many programs split the sums of one tile of outputs to reach `_PROGRAMS` in total; a power of two."""
    tiles, splits = -(-outputs // tile), 1
    while splits < _MAX_SPLITS and tiles * splits < _PROGRAMS and 2 * splits <= steps:
        splits *= 2
    return splits
