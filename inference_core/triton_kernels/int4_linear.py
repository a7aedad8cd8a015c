"""Linear layers with 4-bit weights: float32 products for one row, matrix instructions for more, dequantised and dense
for many.

Reading the weights bounds the time of few rows (SPEC AT-06, AT-09), and what is left of it goes to unpacking: codes are
used from the registers into which they were loaded, two with three instructions, as the exact small integers code - 8,
and scales are applied to the sums of a group. Weights are the left operand of matrix instructions (out^T = W x^T).
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.scaled_linear import add_splits
from inference_core.triton_kernels.weights import BLOCK, WORDS, Int4Tile, choose_int4_tile, dense_linear, group_size

_BLOCK = tl.constexpr(BLOCK)
_WORDS = tl.constexpr(WORDS)
_STEPS = tl.constexpr(BLOCK // (2 * WORDS))
_ASSEMBLY = tl.constexpr(not triton.knobs.runtime.interpret)
_OUTPUTS_PER_WARP = 4  # 16 bytes for each of 32 threads
# From this many rows on, dequantising the weights once costs less than unpacking them for every tile of rows.
DENSE_ROWS = 129
# Outputs dequantised at a time, to keep the dense copy small (64 Mi numbers for K = 8192).
_DENSE_OUTPUTS = 8192
_SUM_ROWS = 16  # of one program that adds up groups of x
# The exponent of a float32 whose mantissa counts ones (2**23). A kernel gets it as an argument: of two constants in
# `a & mask | exponent` one would cost an instruction of its own.
_EXPONENT = 0x4B000000


@triton.jit
def pairs(words, step, DTYPE: tl.constexpr, ASSEMBLY: tl.constexpr):
    """The codes of bits 4 step and 4 step + 16 of each word, less 8, as two tensors of DTYPE, exactly: a code in the
    low bits of 1024 (float16) or 128 (bfloat16), less 1032 or 136. ASSEMBLY computes both halves of a word at once,
    which the compiler does not find and the interpreter cannot run; without it the numbers are the same."""
    shifted = words >> (4 * step)
    if ASSEMBLY:
        if tl.float16 == DTYPE:
            return tl.inline_asm_elementwise(
                "{ .reg .b32 t; lop3.b32 t, $2, 0x000F000F, 0x64006400, 0xEA; sub.rn.f16x2 t, t, $3;"
                " mov.b32 {$0, $1}, t; }",
                "=h,=h,r,r",
                [shifted, 0x64086408],
                dtype=(tl.float16, tl.float16),
                is_pure=True,
                pack=1,
            )
        else:
            # Less 136 as 1 t - 136: the subtraction of pairs is of capability 9.0, this one of 8.0.
            return tl.inline_asm_elementwise(
                "{ .reg .b32 t, a, b; mov.b32 a, 0x3F803F80; mov.b32 b, 0xC308C308;"
                " lop3.b32 t, $2, 0x000F000F, 0x43004300, 0xEA; fma.rn.bf16x2 t, t, a, b;"
                " mov.b32 {$0, $1}, t; }",
                "=h,=h,r",
                [shifted],
                dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=1,
            )
    return _centred(shifted & 0xF, DTYPE), _centred((shifted >> 16) & 0xF, DTYPE)


@triton.jit
def _centred(code, DTYPE: tl.constexpr):
    if tl.float16 == DTYPE:
        return (code | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1032.0
    else:
        return (code | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - 136.0


@triton.jit
def centred(words, step, DTYPE: tl.constexpr):
    """`pairs` of words [N, W] by input: DTYPE [N, 2 W]."""
    low, high = pairs(words, step, DTYPE, _ASSEMBLY)
    return tl.reshape(tl.join(low, high), (words.shape[0], 2 * words.shape[1]))


@triton.jit
def load_parts(codes, row, real, PARTS: tl.constexpr):
    """The words of rows [N] of `codes`, as PARTS tensors [N, 32 / PARTS]; zeros where not `real`."""
    j = tl.arange(0, _WORDS // PARTS)
    parts = ()
    for part in tl.static_range(PARTS):
        pointers = codes + row[:, None] * _WORDS + (j[None, :] + part * (_WORDS // PARTS))
        parts = parts + (tl.load(pointers, mask=real[:, None], other=0),)  # type: ignore[assignment]  # noqa: RUF005
    return parts


@triton.jit
def _times_halves(values, factors):
    """values [N, W] times factors [N, H]: for H = 2, each half of the columns by its own."""
    if factors.shape[1] == 1:
        return values * factors
    else:
        parts = tl.reshape(values, (values.shape[0], factors.shape[1], values.shape[1] // factors.shape[1]))
        return tl.reshape(parts * factors[:, :, None], values.shape)


@triton.jit
def _finish(out, sums, bias, out_stride, outputs, rows, n, m, HAS_BIAS: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Write or add sums [n, m] with the bias to out [m, n]."""
    inside = (n[:, None] < outputs) & (m[None, :] < rows)
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    pointers = out + m[None, :].to(tl.int64) * out_stride + n[:, None]
    if ACCUMULATE:
        sums += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    tl.store(pointers, sums.to(out.dtype.element_ty), mask=inside)


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
    SPAN: tl.constexpr = GROUP if GROUP > 2 * _WORDS else 2 * _WORDS  # the inputs of whole groups and of whole steps
    half = tl.arange(0, SPAN // GROUP)
    x_pairs = x.to(tl.pointer_type(tl.int32))
    sums = ()
    for _ in tl.static_range(TILES):
        sums = sums + (tl.zeros((BLOCK_N, _WORDS), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    first = split * blocks_per_split
    end = tl.minimum(first + blocks_per_split, tl.cdiv(inputs, _BLOCK))
    words = _load_words(codes, first, end, outputs, first_output, BLOCK_N, TILES)
    for block in range(first, end):
        for span in tl.static_range(_BLOCK // SPAN):
            added = ()
            for tile in tl.static_range(TILES):
                n = first_output + tile * BLOCK_N
                group = tl.cast(block, tl.int64) * (_BLOCK // GROUP) + span * (SPAN // GROUP)
                at = (group + half)[None, :] * outputs + n[:, None]
                real = (n < outputs)[:, None]
                products = tl.zeros((BLOCK_N, _WORDS), tl.float32)
                total = tl.zeros((_WORDS,), tl.float32)
                for i in tl.static_range(SPAN // (2 * _WORDS)):
                    step = span * (SPAN // (2 * _WORDS)) + i
                    k = block * (_BLOCK // 2) + step * _WORDS + j
                    two = tl.load(x_pairs + k, mask=k < inputs // 2, other=0)
                    for high in tl.static_range(2):
                        xs = (two >> (16 * high)).to(tl.int16).to(x.dtype.element_ty, bitcast=True).to(tl.float32)
                        # A nibble stays at its digit of a mantissa, where it counts 16**digit, and x is divided by
                        # that. The last three are moved, since a mantissa has room for five.
                        nibble = step + _STEPS * high
                        moved = nibble // 5
                        digit = nibble - 3 * moved
                        power = tl.cast(1 << (4 * digit), tl.float32)
                        code = ((words[tile] >> (12 * moved)) & (0xF << (4 * digit))) | exponent
                        code = code.to(tl.float32, bitcast=True) - (2.0**23 + 8.0 * power)
                        products += code * (xs * (1.0 / power))[None, :]
                        total += xs
                summed = sums[tile] + _times_halves(products, tl.load(scales + at, mask=real, other=0.0).to(tl.float32))
                if HAS_OFFSETS:
                    offset = tl.load(offsets + at, mask=real, other=0.0).to(tl.float32)
                    summed += _times_halves(tl.broadcast_to(total[None, :], (BLOCK_N, _WORDS)), offset)
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
    inputs fill their blocks. `x_sums` float32 [groups, M]: the sums of x that offsets need."""
    split = tl.program_id(2)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    STEP: tl.constexpr = GROUP if GROUP < 2 * _WORDS else 2 * _WORDS  # inputs of one product: of one group
    PARTS: tl.constexpr = 2 * _WORDS // STEP
    step_k = tl.arange(0, STEP)
    real, seen = n < outputs, m < rows
    x_rows = x + m[None, :].to(tl.int64) * x_stride
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    first = split * blocks_per_split
    end = tl.minimum(first + blocks_per_split, tl.cdiv(inputs, _BLOCK))
    for block in range(first, end):
        words = load_parts(codes, tl.cast(block, tl.int64) * outputs + n, real, PARTS)
        for group in tl.static_range(_BLOCK // GROUP):
            products = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for i in tl.static_range(GROUP // STEP):
                step = group * (GROUP // STEP) + i
                k = block * _BLOCK + step * STEP + step_k
                inside = seen[None, :] if WHOLE else (k[:, None] < inputs) & seen[None, :]
                xs = tl.load(x_rows + k[:, None], mask=inside, other=0.0)
                weight = centred(words[(PARTS - 1) & group], step // PARTS, x.dtype.element_ty)
                products = tl.dot(weight, xs, products)
            number = tl.cast(block, tl.int64) * (_BLOCK // GROUP) + group
            group_index = number * outputs + n
            sums += products * tl.load(scales + group_index, mask=real, other=0.0).to(tl.float32)[:, None]
            if HAS_OFFSETS:
                totals = tl.load(x_sums + number * rows + m, mask=seen, other=0.0)
                sums += tl.load(offsets + group_index, mask=real, other=0.0).to(tl.float32)[:, None] * totals[None, :]
    if SPLIT:
        pointers = partial + (split.to(tl.int64) * rows + m[None, :]) * outputs + n[:, None]
        tl.store(pointers, sums, mask=real[:, None] & seen[None, :])
    else:
        _finish(out, sums, bias, out_stride, outputs, rows, n, m, HAS_BIAS, ACCUMULATE)


@triton.jit
def group_sums_kernel(x, sums, rows, inputs, x_stride, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """sums float32 [groups, M]: of each group of inputs, ROWS rows of one group a program."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    k = group * GROUP + tl.arange(0, GROUP)
    pointers = x + m[:, None].to(tl.int64) * x_stride + k[None, :]
    xs = tl.load(pointers, mask=(m < rows)[:, None] & (k < inputs)[None, :], other=0.0).to(tl.float32)
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
    SPAN: tl.constexpr = GROUP if GROUP > 2 * _WORDS else 2 * _WORDS
    HALVES: tl.constexpr = SPAN // GROUP
    for step in tl.static_range(_STEPS):
        group = tl.cast(block, tl.int64) * (_BLOCK // GROUP) + step * 2 * _WORDS // SPAN * HALVES
        group_index = (group + tl.arange(0, HALVES))[None, :] * outputs + n[:, None]
        weight = centred(words, step, tl.float16).to(tl.float32)
        weight = _times_halves(weight, tl.load(scales + group_index, mask=real[:, None], other=0.0).to(tl.float32))
        if HAS_OFFSETS:
            offset = tl.load(offsets + group_index, mask=real[:, None], other=0.0).to(tl.float32)
            weight += _times_halves(tl.full((BLOCK_N, 2 * _WORDS), 1.0, tl.float32), offset)
        k = block * _BLOCK + step * 2 * _WORDS + tl.arange(0, 2 * _WORDS)
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

    x [M, K] and out [M, N] float16 or bfloat16, unit stride along their rows, x at a multiple of 4 bytes; codes,
    scales and offsets as in `Int4Weight`; bias [N]. Sums are split over `tile.splits` programs; from `DENSE_ROWS` on,
    weights are dequantised and multiplied densely. `tile` overrides the default for the shape.
    """
    rows, inputs = x.shape
    if rows == 0:
        return
    if tile is None and rows >= DENSE_ROWS:
        _dense_linear(x, codes, scales, offsets, bias, out, accumulate=accumulate)
        return
    outputs = codes.shape[1]
    tile = tile or choose_int4_tile(rows, outputs, inputs, hopper=_capability(x.device) >= (9, 0))
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
    if tile.rows == 1:
        width = tile.warps * _OUTPUTS_PER_WARP
        tiles = max(1, tile.outputs // width)
        int4_gemv_kernel[(triton.cdiv(outputs, width * tiles), splits)](
            *(*tensors, outputs, inputs, per_split, _EXPONENT),
            BLOCK_N=width,
            TILES=tiles,
            maxnreg=128 if _capability(x.device) >= (10, 0) else None,  # there the compiler's own choice spills
            **meta,
        )
    else:
        x_sums = None if offsets is None else _group_sums(x, len(scales), meta["GROUP"])
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


def _capability(device: torch.device) -> tuple[int, int]:
    """Of a device that is not the CPU; there, where kernels are interpreted, Hopper's."""
    return (9, 0) if device.type == "cpu" else torch.cuda.get_device_capability(device)


def _group_sums(x: torch.Tensor, groups: int, group: int) -> torch.Tensor:
    """Sums of x [M, K] over groups of `group` inputs: float32 [groups, M]."""
    rows, inputs = x.shape
    sums = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    group_sums_kernel[(triton.cdiv(rows, _SUM_ROWS), groups)](
        x, sums, rows, inputs, x.stride(0), GROUP=group, ROWS=_SUM_ROWS, num_warps=min(4, group // 16)
    )
    return sums


def int4_dequantize(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, dense: torch.Tensor, first_output: int = 0
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
