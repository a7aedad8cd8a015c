"""Linear layers with 4-bit weights: float32 products for one row, matrix instructions for more, dequantised and dense
for many.

Reading the weights bounds the time of few rows (SPEC AT-06, AT-09), and what is left of it goes to unpacking: codes are
used from the registers into which they were loaded, as the exact small integers code - 8, and scales are applied to the
sums of a group. Weights are the left operand of matrix instructions (out^T = W x^T).
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.scaled_linear import add_splits
from inference_core.triton_kernels.weights import BLOCK, WORDS, Int4Tile, choose_int4_tile, dense_linear, group_size

_BLOCK = tl.constexpr(BLOCK)
_WORDS = tl.constexpr(WORDS)
_NIBBLES = tl.constexpr(BLOCK // WORDS)
_OUTPUTS_PER_WARP = 4  # 16 bytes for each of 32 threads
# From this many rows on, dequantising the weights once costs less than unpacking them for every tile of rows.
DENSE_ROWS = 129
# Outputs dequantised at a time, to keep the dense copy small (64 Mi numbers for K = 8192).
_DENSE_OUTPUTS = 8192
# From this many rows on, matrix units are busy with the weights, and sums of x cost less when added up before.
_SUMMED_ROWS = 32
_SUM_ROWS = 16  # of one program that adds them up
# The exponent of a float32 whose mantissa counts ones (2**23). A kernel gets it as an argument: of two constants in
# `a & mask | exponent` one would cost an instruction of its own.
_EXPONENT = 0x4B000000


@triton.jit
def centred(words, nibble, DTYPE: tl.constexpr):
    """code - 8 as DTYPE, exactly: the code in the low bits of 1024 (float16) or 128 (bfloat16), less 1032 or 136."""
    code = (words >> (4 * nibble)) & 0xF
    if tl.float16 == DTYPE:
        return (code | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1032.0
    else:
        return (code | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - 136.0


@triton.jit
def _finish(
    out,
    sums,
    bias,
    out_stride,
    outputs,
    rows,
    n,
    m,
    HAS_BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """Write or add sums [n, m] with the bias to out [m, n]."""
    inside = (n[:, None] < outputs) & (m[None, :] < rows)
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    place = out + m[None, :].to(tl.int64) * out_stride + n[:, None]
    if ACCUMULATE:
        sums += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _load_words(codes, block, end, outputs, first_output, BLOCK_N: tl.constexpr, TILES: tl.constexpr):
    """Words [BLOCK_N, 32] of a block, by tile of outputs; zeros beyond the last block or output."""
    j = tl.arange(0, _WORDS)
    words = ()
    for tile in tl.static_range(TILES):
        n = first_output + tile * BLOCK_N
        real = n < tl.where(block < end, outputs, 0)
        row = tl.cast(block, tl.int64) * outputs + n
        loaded = tl.load(codes + row[:, None] * _WORDS + j[None, :], mask=real[:, None], other=0)
        words = words + (loaded,)  # type: ignore[assignment]  # noqa: RUF005  Triton has no other way
    return words


@triton.jit
def int4_gemv_kernel(
    x,
    codes,
    scales,
    offsets,
    bias,
    out,
    partial,
    outputs,
    inputs,
    blocks_per_split,
    exponent,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
):
    """TILES times BLOCK_N outputs of one row over one run of blocks, written to `out`, or if SPLIT to `partial`
    [splits, 1, N]. Every thread adds up its own inputs of some outputs; threads meet once, at the end. A block's words
    are loaded after the products of the one before: between the kernels of a model that takes a tenth less time than
    loading them before their own products."""
    split = tl.program_id(1)
    first_output = tl.program_id(0) * (BLOCK_N * TILES) + tl.arange(0, BLOCK_N)
    j = tl.arange(0, _WORDS)
    sums = ()
    for _ in tl.static_range(TILES):
        sums = sums + (tl.zeros((BLOCK_N, _WORDS), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    first = split * blocks_per_split
    end = tl.minimum(first + blocks_per_split, tl.cdiv(inputs, _BLOCK))
    words = _load_words(codes, first, end, outputs, first_output, BLOCK_N, TILES)
    for block in range(first, end):
        for group in tl.static_range(_BLOCK // GROUP):
            added = ()
            for tile in tl.static_range(TILES):
                n = first_output + tile * BLOCK_N
                at = (tl.cast(block, tl.int64) * (_BLOCK // GROUP) + group) * outputs + n
                scale = tl.load(scales + at, mask=n < outputs, other=0.0).to(tl.float32)
                products = tl.zeros((BLOCK_N, _WORDS), tl.float32)
                total = tl.zeros((_WORDS,), tl.float32)
                for i in tl.static_range(GROUP // _WORDS):
                    nibble = group * (GROUP // _WORDS) + i
                    k = block * _BLOCK + nibble * _WORDS + j
                    xs = tl.load(x + k, mask=k < inputs, other=0.0).to(tl.float32)
                    # A nibble stays at its place in a mantissa, where it counts 16**place, and x is divided by that.
                    # The last three are moved, since a mantissa has room for five.
                    moved = nibble // 5
                    place = nibble - 3 * moved
                    power = tl.cast(1 << (4 * place), tl.float32)
                    code = ((words[tile] >> (12 * moved)) & (0xF << (4 * place))) | exponent
                    code = code.to(tl.float32, bitcast=True) - (2.0**23 + 8.0 * power)
                    products += code * (xs * (1.0 / power))[None, :]
                    total += xs
                summed = sums[tile] + products * scale[:, None]
                if HAS_OFFSETS:
                    offset = tl.load(offsets + at, mask=n < outputs, other=0.0).to(tl.float32)
                    summed += offset[:, None] * total[None, :]
                added = added + (summed,)  # type: ignore[assignment]  # noqa: RUF005
            sums = added
        words = _load_words(codes, block + 1, end, outputs, first_output, BLOCK_N, TILES)
    for tile in tl.static_range(TILES):
        n = first_output + tile * BLOCK_N
        result = tl.sum(sums[tile], axis=1)
        if SPLIT:
            tl.store(partial + split.to(tl.int64) * outputs + n, result, mask=n < outputs)
        else:
            if HAS_BIAS:
                result += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
            if ACCUMULATE:
                result += tl.load(out + n, mask=n < outputs, other=0.0).to(tl.float32)
            tl.store(out + n, result.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def int4_gemm_kernel(
    x,
    codes,
    scales,
    offsets,
    bias,
    out,
    partial,
    x_sums,
    rows,
    outputs,
    inputs,
    x_stride,
    out_stride,
    blocks_per_split,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One tile of BLOCK_N outputs by BLOCK_M rows over one run of blocks, written as by `int4_gemv_kernel`. WHOLE: the
    inputs fill their blocks. The sums of x that offsets need are read from `x_sums` float32 [groups, M]; without it
    they are products with ones, for few rows, with which matrix units are idle anyway."""
    split = tl.program_id(2)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, _WORDS)
    real, seen = n < outputs, m < rows
    x_rows = x + m[None, :].to(tl.int64) * x_stride
    ones = tl.full((BLOCK_N, _WORDS), 1.0, x.dtype.element_ty)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    first = split * blocks_per_split
    end = tl.minimum(first + blocks_per_split, tl.cdiv(inputs, _BLOCK))
    for block in range(first, end):
        row = tl.cast(block, tl.int64) * outputs + n
        words = tl.load(codes + row[:, None] * _WORDS + j[None, :], mask=real[:, None], other=0)
        for group in tl.static_range(_BLOCK // GROUP):
            products = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            totals = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for i in tl.static_range(GROUP // _WORDS):
                nibble = group * (GROUP // _WORDS) + i
                k = block * _BLOCK + nibble * _WORDS + j
                inside = seen[None, :] if WHOLE else (k[:, None] < inputs) & seen[None, :]
                xs = tl.load(x_rows + k[:, None], mask=inside, other=0.0)
                products = tl.dot(centred(words, nibble, x.dtype.element_ty), xs, products)
                if HAS_OFFSETS and x_sums is None:
                    totals = tl.dot(ones, xs, totals)
            number = tl.cast(block, tl.int64) * (_BLOCK // GROUP) + group
            place = number * outputs + n
            sums += products * tl.load(scales + place, mask=real, other=0.0).to(tl.float32)[:, None]
            if HAS_OFFSETS:
                if x_sums is not None:
                    totals = tl.load(x_sums + number * rows + m, mask=seen, other=0.0)[None, :]
                sums += tl.load(offsets + place, mask=real, other=0.0).to(tl.float32)[:, None] * totals
    if SPLIT:
        place = partial + (split.to(tl.int64) * rows + m[None, :]) * outputs + n[:, None]
        tl.store(place, sums, mask=real[:, None] & seen[None, :])
    else:
        _finish(out, sums, bias, out_stride, outputs, rows, n, m, HAS_BIAS, ACCUMULATE)


@triton.jit
def group_sums_kernel(x, sums, rows, inputs, x_stride, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """sums float32 [groups, M]: of each group of inputs, ROWS rows of one group a program."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    k = group * GROUP + tl.arange(0, GROUP)
    place = x + m[:, None].to(tl.int64) * x_stride + k[None, :]
    xs = tl.load(place, mask=(m < rows)[:, None] & (k < inputs)[None, :], other=0.0).to(tl.float32)
    tl.store(sums + group * rows + m, tl.sum(xs, axis=1), mask=m < rows)


@triton.jit
def int4_dequantize_kernel(
    codes,
    scales,
    offsets,
    dense,
    first_output,
    count,
    outputs,
    inputs,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Dequantise rows [first_output, first_output + count) to dense [count, inputs]; a program takes one block."""
    local = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.program_id(1)
    n = first_output + local
    j = tl.arange(0, _WORDS)
    real = local < count
    row = tl.cast(block, tl.int64) * outputs + n
    words = tl.load(codes + row[:, None] * _WORDS + j[None, :], mask=real[:, None], other=0)
    for nibble in tl.static_range(_NIBBLES):
        place = (tl.cast(block, tl.int64) * (_BLOCK // GROUP) + nibble * _WORDS // GROUP) * outputs + n
        weight = centred(words, nibble, tl.float16).to(tl.float32)
        weight *= tl.load(scales + place, mask=real, other=0.0).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            weight += tl.load(offsets + place, mask=real, other=0.0).to(tl.float32)[:, None]
        k = block * _BLOCK + nibble * _WORDS + j
        target = dense + local[:, None].to(tl.int64) * inputs + k[None, :]
        tl.store(target, weight.to(dense.dtype.element_ty), mask=real[:, None] & (k[None, :] < inputs))


def int4_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
    tile: Int4Tile | None = None,
) -> None:
    """Write (or add) x W^T + bias to out.

    x [M, K] and out [M, N] float16 or bfloat16, unit stride along their rows; codes, scales and offsets as in
    `Int4Weight`; bias [N]. Sums are split over `tile.splits` programs; from `DENSE_ROWS` on, weights are dequantised
    and multiplied densely. `tile` overrides the default for the shape.
    """
    rows, inputs = x.shape
    if rows == 0:
        return
    if tile is None and rows >= DENSE_ROWS:
        _dense_linear(x, codes, scales, offsets, bias, out, accumulate=accumulate)
        return
    outputs = codes.shape[1]
    tile = tile or choose_int4_tile(rows, outputs, inputs)
    blocks = triton.cdiv(inputs, BLOCK)
    per_split = triton.cdiv(blocks, tile.splits)
    splits = triton.cdiv(blocks, per_split)
    partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device) if splits > 1 else None
    tensors = (x, codes, scales, offsets, bias, out, partial)
    meta = {
        "GROUP": group_size(codes, scales),
        "HAS_OFFSETS": offsets is not None,
        "HAS_BIAS": bias is not None,
        "ACCUMULATE": accumulate,
        "SPLIT": splits > 1,
        "num_warps": tile.warps,
    }
    if rows == 1:
        width = tile.warps * _OUTPUTS_PER_WARP
        tiles = max(1, tile.outputs // width)
        int4_gemv_kernel[(triton.cdiv(outputs, width * tiles), splits)](
            *(*tensors, outputs, inputs, per_split, _EXPONENT),
            BLOCK_N=width,
            TILES=tiles,
            maxnreg=_registers_of_one_row(x.device),
            **meta,
        )
    else:
        x_sums = None if offsets is None or rows < _SUMMED_ROWS else _group_sums(x, len(scales), meta["GROUP"])
        int4_gemm_kernel[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), splits)](
            *(*tensors, x_sums, rows, outputs, inputs, x.stride(0), out.stride(0), per_split),
            WHOLE=inputs % BLOCK == 0,
            BLOCK_N=tile.outputs,
            BLOCK_M=tile.rows,
            num_stages=tile.stages,
            **meta,
        )
    if partial is not None:
        add_splits(partial, bias, out, accumulate)


def _registers_of_one_row(device: torch.device) -> int | None:
    """The most registers of a thread of `int4_gemv_kernel` where the compiler's own choice spills: on Blackwell."""
    if device.type == "cpu" or torch.cuda.get_device_capability(device) < (10, 0):
        return None
    return 144


def _group_sums(x: torch.Tensor, groups: int, group: int) -> torch.Tensor:
    """Sums of x [M, K] over groups of `group` inputs: float32 [groups, M]."""
    rows, inputs = x.shape
    sums = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    group_sums_kernel[(triton.cdiv(rows, _SUM_ROWS), groups)](
        x, sums, rows, inputs, x.stride(0), GROUP=group, ROWS=_SUM_ROWS, num_warps=4
    )
    return sums


def int4_dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    dense: torch.Tensor,
    first_output: int = 0,
) -> None:
    """Dequantise the outputs from `first_output` on to dense [count, K], of any floating dtype."""
    count, inputs = dense.shape
    int4_dequantize_kernel[(triton.cdiv(count, 64), triton.cdiv(inputs, BLOCK))](
        *(codes, scales, offsets, dense, first_output, count, codes.shape[1], inputs),
        GROUP=group_size(codes, scales),
        HAS_OFFSETS=offsets is not None,
        BLOCK_N=64,
        num_warps=4,
    )


def _dense_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """Dequantise some outputs at a time and multiply them with torch."""
    outputs = codes.shape[1]
    for first in range(0, outputs, _DENSE_OUTPUTS):
        part = slice(first, min(first + _DENSE_OUTPUTS, outputs))
        dense = torch.empty(part.stop - first, x.shape[1], dtype=x.dtype, device=x.device)
        int4_dequantize(codes, scales, offsets, dense, first)
        dense_linear(x, dense, None if bias is None else bias[part].to(x.dtype), out[:, part], accumulate=accumulate)
