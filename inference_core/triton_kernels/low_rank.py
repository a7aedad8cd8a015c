"""Low-rank adapters for batches whose rows use different adapters: y += scale * B (A x), segment by segment.

Rows of the same adapter are gathered into tiles (SGMV in Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023), so that
one launch serves any mixture and a tile reads its factors once. Two kernels: `shrink` computes A x of each row,
`expand` adds B times it to the outputs. The launches depend only on shapes and addresses, so both can be replayed in a
graph while adapters change.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots, choose_splits

_BLOCK_K = 128
_BLOCK_N = 128
_MOST_PARTS = 3
_PROGRAMS = 256  # about two for each processor of the largest devices


@triton.jit
def shrink_kernel(
    x,
    down,
    scales,
    ranks,
    rows,
    tiles,
    sums,
    inputs,
    tokens,
    x_stride,
    table_width,
    steps_per_split,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile's rows through BLOCK_R ranks of one part's A, over a run of inputs."""
    tile = tl.program_id(0)
    begin, count, slot = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if slot < 0:
        return
    RANK_BLOCKS: tl.constexpr = (MAX_RANK + BLOCK_R - 1) // BLOCK_R
    part, first = tl.program_id(1) // RANK_BLOCKS, tl.program_id(1) % RANK_BLOCKS * BLOCK_R
    rank = tl.load(ranks + slot * table_width + part)
    if first >= rank:
        return
    i = tl.arange(0, BLOCK_M)
    r = first + tl.arange(0, BLOCK_R)
    real, live = i < count, r < rank
    m = tl.load(rows + begin + i, mask=real, other=0)
    x_rows = x + m[:, None].to(tl.int64) * x_stride
    ranks_of_slot = (slot.to(tl.int64) * PARTS + part) * MAX_RANK + r
    down_rows = down + ranks_of_slot[None, :] * inputs
    products = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    split = tl.program_id(2)
    last = tl.minimum((split + 1) * steps_per_split, tl.cdiv(inputs, BLOCK_K))
    for step in range(split * steps_per_split, last):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(x_rows + k[None, :], mask=real[:, None] & (k[None, :] < inputs), other=0.0)
        b = tl.load(down_rows + k[:, None], mask=live[None, :] & (k[:, None] < inputs), other=0.0)
        products = tl.dot(a, b, products, input_precision="ieee")
    products *= tl.load(scales + slot * table_width + part)
    indices = (split.to(tl.int64) * tokens + begin + i[:, None]) * (PARTS * MAX_RANK) + part * MAX_RANK + r[None, :]
    tl.store(sums + indices, products, mask=real[:, None] & live[None, :])


@triton.jit
def expand_kernel(
    out,
    sums,
    up,
    ranks,
    rows,
    tiles,
    outputs,
    tokens,
    out_stride,
    table_width,
    splits,
    second,
    third,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One tile's rows of BLOCK_N outputs. Parts begin at outputs 0, `second` and `third`; no block crosses a border."""
    tile = tl.program_id(0)
    begin, count, slot = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if slot < 0:
        return
    block = tl.program_id(1)
    part, low, high = 0, 0, outputs
    if PARTS > 1:
        passed = tl.cdiv(second, BLOCK_N)
        later = block >= passed
        block = tl.where(later, block - passed, block)
        part, low, high = later.to(tl.int32), tl.where(later, second, 0), tl.where(later, outputs, second)
    if PARTS > 2:
        passed = tl.cdiv(third - second, BLOCK_N)
        latest = later & (block >= passed)
        high = tl.where(later & (block < passed), third, high)
        block = tl.where(latest, block - passed, block)
        part, low = part + latest.to(tl.int32), tl.where(latest, third, low)
    rank = tl.load(ranks + slot * table_width + part)
    if rank == 0:
        return
    i = tl.arange(0, BLOCK_M)
    n = low + block * BLOCK_N + tl.arange(0, BLOCK_N)
    real, seen = i < count, n < high
    m = tl.load(rows + begin + i, mask=real, other=0)
    pointers = out + m[:, None].to(tl.int64) * out_stride + n[None, :]
    inside = real[:, None] & seen[None, :]
    added = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    for first in range(0, rank, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        live = r < rank
        # Memory beyond an adapter's ranks may hold anything, including NaN.
        valid = real[:, None] & live[None, :]
        source = sums + (begin + i[:, None]).to(tl.int64) * (PARTS * MAX_RANK) + part * MAX_RANK + r[None, :]
        a = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for split in range(splits):
            a += tl.load(source + tl.cast(split, tl.int64) * tokens * (PARTS * MAX_RANK), mask=valid, other=0.0)
        up_rows = up + (slot.to(tl.int64) * MAX_RANK + r[:, None]) * outputs
        b = tl.load(up_rows + n[None, :], mask=live[:, None] & seen[None, :], other=0.0)
        added = tl.dot(a.to(b.dtype), b, added, input_precision="ieee")
    tl.store(pointers, added.to(out.dtype.element_ty), mask=inside)


def add_low_rank(
    out: torch.Tensor, x: torch.Tensor, slots: LowRankSlots, batch: LowRankRows, *, splits: int | None = None
) -> None:
    """Add scale * B (A x) of each row's adapter to out [T, N], for x [T, K] in the factors' dtype.

    A x is summed in float32 and rounded to the factors' dtype before the product with B. x and out have unit stride
    along their rows. `splits`: programs that split the inputs of a tile; None: the default for the shape.
    """
    programs, inputs, outputs = len(batch.tiles), x.shape[1], out.shape[1]
    if programs == 0:
        return
    parts, max_rank = slots.down.shape[1], slots.down.shape[2]
    block_r = 16 if max_rank <= 16 else 32
    columns = parts * triton.cdiv(max_rank, block_r)
    steps = triton.cdiv(inputs, _BLOCK_K)
    wanted = splits or choose_splits(programs * columns, steps, _PROGRAMS)
    per_split = triton.cdiv(steps, wanted)
    splits = triton.cdiv(steps, per_split)
    sums = torch.empty(splits, len(x), parts * max_rank, dtype=torch.float32, device=x.device)
    shrink_kernel[(programs, columns, splits)](
        *(x, slots.down, slots.scales, slots.ranks, batch.rows, batch.tiles, sums),
        *(inputs, len(x), x.stride(0), slots.ranks.stride(0), per_split),
        PARTS=parts,
        MAX_RANK=max_rank,
        BLOCK_M=batch.tile_rows,
        BLOCK_R=block_r,
        BLOCK_K=_BLOCK_K,
        num_warps=4,
        num_stages=3,
    )
    begins = (*slots.borders[1:parts], *[outputs] * (_MOST_PARTS - parts))
    blocks = sum(triton.cdiv(slots.borders[p + 1] - slots.borders[p], _BLOCK_N) for p in range(parts))
    expand_kernel[(programs, blocks)](
        *(out, sums, slots.up, slots.ranks, batch.rows, batch.tiles),
        *(outputs, len(x), out.stride(0), slots.ranks.stride(0), splits, *begins),
        PARTS=parts,
        MAX_RANK=max_rank,
        BLOCK_M=batch.tile_rows,
        BLOCK_N=_BLOCK_N,
        BLOCK_R=block_r,
        num_warps=4,
        num_stages=2,
    )
