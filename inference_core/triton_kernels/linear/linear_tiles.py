"""Tile sizes of the linear kernels: warps, pipeline stages, and splits of the sums.

Few rows need many concurrent programs to keep memory busy, many rows need large tiles to keep matrix instructions busy.
The tables are the best of those that were measured on an H200 and fit in 96 KiB of shared memory, which the smallest
device has. Every launcher accepts an override.
"""

from dataclasses import dataclass

from inference_core.triton_kernels.linear.int4_weight import BLOCK

_MAX_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Int4Tile:
    """`outputs` and `rows` of one program, powers of two of at least 16; `splits` of the inputs. One row has no
    stages."""

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
    if rows == 1:
        return Int4Tile(32, 1, warps=2, stages=1, splits=choose_splits(-(-outputs // 32), blocks, 1024))
    if rows <= 16:
        return Int4Tile(32, 16, warps=2, stages=4, splits=choose_splits(-(-outputs // 32), blocks, 512))
    if rows <= 32:
        return Int4Tile(64, 32, warps=4, stages=2, splits=choose_splits(-(-outputs // 64), blocks, 1024))
    tiles = -(-outputs // 64) * -(-rows // 64)
    return Int4Tile(64, 64, warps=4, stages=2, splits=choose_splits(tiles, blocks, 256))


def choose_scaled_tile(rows: int, outputs: int, inputs: int, *, blockwise: bool) -> ScaledTile:
    """Choose a tile for 8-bit operands; `blockwise` scales need registers for a second tile of sums."""
    steps = -(-inputs // 128)
    if rows <= 16:
        return ScaledTile(16, 32, 128, warps=4, stages=5, splits=choose_splits(-(-outputs // 32), steps, 384))
    if rows <= 64:
        return ScaledTile(64, 64, 128, warps=4, stages=5, splits=choose_splits(-(-outputs // 64), steps, 192))
    if -(-outputs // 128) * -(-rows // 128) < 96:  # too few large tiles for the processors
        splits = choose_splits(-(-outputs // 64) * -(-rows // 64), steps // 32, 192)
        return ScaledTile(64, 64, 128, warps=4, stages=5, splits=splits)
    return ScaledTile(128, 64 if blockwise else 128, 128, warps=8, stages=3)


def choose_splits(tiles: int, steps: int, programs: int) -> int:
    """How many programs share the sums of each of `tiles`, so that there are `programs` in total: a power of two."""
    splits = 1
    while splits < _MAX_SPLITS and tiles * splits < programs and 2 * splits <= steps:
        splits *= 2
    return splits
