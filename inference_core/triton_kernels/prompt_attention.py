"""Attention of long prompts through cuDNN on Hopper, whose causal attention takes half the time of `paged_attention`.

cuDNN reads contiguous keys, masks from the top left, and builds a plan, for 150 ms, for every new shape and thread. So
lengths are rounded up to multiples of `PROMPT_GRAIN`, and the plans are built when a model is loaded, by the thread
that runs its steps (`build_prompt_plans`). Without plans `paged_attention` computes everything itself.

Queries behind a context take two kinds of parts. The own part starts at the last multiple of the grain in the context:
rows before the first query and behind the last one are padding, which no real query sees. The context before it is
read in parts of two sizes, without a mask. Parts are averaged by their sums of weights (Dao 2023).
"""

import logging
import threading
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.layer_cache import ALIGNMENT, LayerCache
from inference_core.triton_kernels.tiles import PROMPT_GRAIN, padded

logger = logging.getLogger(__name__)
# Of queries [1, heads, Q, d] over keys and values [1, kv_heads, C, d], causal or not: the result as the queries, and
# the natural logarithm of each sum of weights, float32, one for each head and query.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]]
# Sizes of parts of a context, in grains, the largest first.
_PART_GRAINS = (4, 1)
# Queries in grains that are attended at once, without padding.
_MOST_GRAINS = 8
_PAIRS = 16  # of queries and heads in a program that merges
_HEAD_DIMS = (64, 128)
_CAPABILITY = (9, 0)
_TOLERANCE = 0.02
_CHECKED_ROWS = 16


@triton.jit(do_not_specialize=["first", "real", "rows"])
def gather_kernel(
    cache,
    scales,
    keys,
    values,
    block_offsets,
    table_start,
    first,
    real,
    rows,
    layer_start,
    values_start,
    scales_start,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    SCALED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Programs: groups of TOKENS rows x KV heads. Writes `rows` rows of keys and values [kv_heads, rows, HEAD_DIM]: the
    `real` tokens of a context from `first` on, then zeros."""
    head = tl.program_id(1)
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    dims = tl.arange(0, HEAD_PAD)
    valid = row < real
    token = first + row
    table = block_offsets + tl.load(table_start)
    offset = tl.load(table + token // BLOCK_SIZE, mask=valid, other=0)
    # In this form the compiler knows that rows are aligned to 16 numbers, and reads 16 bytes at a time.
    at = offset // (ITEM_SIZE * ALIGN) * ALIGN + layer_start + head * (BLOCK_SIZE * HEAD_DIM)
    source = cache + (at + (token % BLOCK_SIZE) * HEAD_DIM)[:, None] + dims[None, :]
    here = valid[:, None] & (dims < HEAD_DIM)[None, :]
    key = tl.load(source, mask=here, other=0.0)
    value = tl.load(source + values_start, mask=here, other=0.0)
    if SCALED:
        word = scales + offset // 4 + scales_start + head * BLOCK_SIZE + token % BLOCK_SIZE
        both = tl.load(word, mask=valid, other=0)
        key = key.to(tl.float32) * (both << 16).to(tl.float32, bitcast=True)[:, None]
        value = value.to(tl.float32) * ((both >> 16) << 16).to(tl.float32, bitcast=True)[:, None]
    target = (head.to(tl.int64) * rows + row)[:, None] * HEAD_DIM + dims[None, :]
    inside = (row < rows)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(keys + target, key.to(keys.dtype.element_ty), mask=inside)
    tl.store(values + target, value.to(values.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first_row", "rows", "queries"])
def merge_part_kernel(
    part,
    part_log,
    mean,
    mean_log,
    out,
    part_row,
    part_head,
    first_row,
    rows,
    queries,
    out_row,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Programs: groups of PAIRS heads of queries. Averages `part`, from row `first_row` of its `rows` on, into `mean`
    float32 [queries, HEADS, HEAD_DIM] by the logarithms of their sums of weights, `part_log` [HEADS, rows] and
    `mean_log` [queries, HEADS]. The FIRST part starts the mean, and the LAST one writes it to `out`."""
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    query = pair // HEADS
    head = pair % HEADS
    dims = tl.arange(0, HEAD_PAD)
    valid = query < queries
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    row = first_row + query
    at = part + (row * part_row + head * part_head)[:, None] + dims[None, :]
    mixed = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    own = pair[:, None] * HEAD_DIM + dims[None, :]
    if not (FIRST and LAST):
        log = tl.load(part_log + head * rows + row, mask=valid, other=0.0)
    if not FIRST:
        old_log = tl.load(mean_log + pair, mask=valid, other=0.0)
        highest = tl.maximum(log, old_log)
        weight, old_weight = tl.exp(log - highest), tl.exp(old_log - highest)
        total = weight + old_weight
        old = tl.load(mean + own, mask=inside, other=0.0)
        mixed = (mixed * weight[:, None] + old * old_weight[:, None]) / total[:, None]
        log = highest + tl.log(total)
    if LAST:
        to = out + (query * out_row + head * HEAD_DIM)[:, None] + dims[None, :]
        tl.store(to, mixed.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(mean + own, mixed, mask=inside)
        tl.store(mean_log + pair, log, mask=valid)


def attend_prompt(
    qkv: torch.Tensor,
    cache: LayerCache,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    first: int,
    queries: int,
    context: int,
    out: torch.Tensor,
    attend: Attend,
) -> None:
    """Write rows `first` to `first + queries` of `out`, as `paged_attention` does for a sequence without a window or a
    cap. `table_start` int32 [1]: start of its table in `block_offsets`; `context`: its tokens, including these."""
    most = _MOST_GRAINS * PROMPT_GRAIN
    for done in range(0, queries, most):
        count, earlier = min(queries - done, most), context - queries + done
        _attend_rows(qkv, cache, (block_offsets, table_start), first + done, count, earlier, out, attend)


def _attend_rows(
    qkv: torch.Tensor,
    cache: LayerCache,
    table: tuple[torch.Tensor, torch.Tensor],
    first: int,
    count: int,
    earlier: int,
    out: torch.Tensor,
    attend: Attend,
) -> None:
    """The `count` rows from `first` on, which follow `earlier` tokens."""
    head_dim = cache.layout.head_dim
    heads = out.shape[1] // head_dim
    own, before = earlier // PROMPT_GRAIN * PROMPT_GRAIN, earlier % PROMPT_GRAIN
    rows = -(-(before + count) // PROMPT_GRAIN) * PROMPT_GRAIN
    query = _query_rows(qkv, first - before, before, count, rows, heads * head_dim)
    query = query.view(rows, heads, head_dim).transpose(0, 1)[None]
    pieces = [(own, before + count, rows), *_context_parts(own)]
    mean = torch.empty(count, heads, head_dim, dtype=torch.float32, device=qkv.device) if own else out
    mean_log = torch.empty(count, heads, dtype=torch.float32, device=qkv.device) if own else out
    target = out[first : first + count]
    for number, (start, real, length) in enumerate(pieces):
        keys, values = _gather(cache, table, start, real, length, qkv.dtype)
        part, part_log = attend(query, keys, values, number == 0)
        merge_part_kernel[(triton.cdiv(count * heads, _PAIRS),)](
            part,
            part_log.reshape(heads, rows),
            mean,
            mean_log,
            target,
            part.stride(2),
            part.stride(1),
            before,
            rows,
            count,
            out.stride(0),
            HEADS=heads,
            HEAD_DIM=head_dim,
            HEAD_PAD=padded(head_dim),
            FIRST=number == 0,
            LAST=number == len(pieces) - 1,
            PAIRS=_PAIRS,
            num_warps=4,
        )


def _query_rows(qkv: torch.Tensor, first: int, before: int, count: int, rows: int, width: int) -> torch.Tensor:
    """[rows, width] with the stride of `qkv`, since plans depend on strides: its rows from `first` on, whatever they
    hold before and behind the real ones, or a copy of the real ones where it ends too early."""
    if first >= 0 and first + rows <= len(qkv):
        return qkv[first : first + rows, :width]
    copy = qkv.new_zeros(rows, qkv.stride(0))[:, :width]
    copy[before : before + count] = qkv[first + before : first + before + count, :width]
    return copy


def _context_parts(tokens: int) -> Iterator[tuple[int, int, int]]:
    """Start, tokens and rows of the parts of a context of `tokens`, a multiple of the grain."""
    start = 0
    for grains in _PART_GRAINS:
        while tokens - start >= grains * PROMPT_GRAIN:
            yield start, grains * PROMPT_GRAIN, grains * PROMPT_GRAIN
            start += grains * PROMPT_GRAIN


def _gather(
    cache: LayerCache, table: tuple[torch.Tensor, torch.Tensor], first: int, real: int, rows: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [1, kv_heads, rows, head_dim] of `real` tokens from `first` on; zeros behind them."""
    layout, tokens = cache.layout, 16
    keys, values = (
        torch.empty(1, layout.num_kv_heads, rows, layout.head_dim, dtype=dtype, device=cache.arena.device)
        for _ in range(2)
    )
    gather_kernel[(triton.cdiv(rows, tokens), layout.num_kv_heads)](
        cache.numbers,
        cache.scales,
        keys,
        values,
        *table,
        first,
        real,
        rows,
        cache.layer_start,
        cache.values_start,
        cache.scales_start,
        HEAD_DIM=layout.head_dim,
        HEAD_PAD=padded(layout.head_dim),
        BLOCK_SIZE=layout.block_size,
        ITEM_SIZE=cache.itemsize,
        ALIGN=ALIGNMENT,
        SCALED=cache.has_scales,
        TOKENS=tokens,
        num_warps=4,
    )
    return keys, values


def cudnn_attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Attend`. Raises RuntimeError where cuDNN has no plan."""
    attended = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, keys, values, None, True, 0.0, causal, False, scale=query.shape[-1] ** -0.5
    )
    return attended[0], attended[1]


# cuDNN's plans belong to the thread that built them; `built` has the calls that they are for.
_plans = threading.local()
_Key = tuple[torch.device, torch.dtype, int, int, int, int]


def has_prompt_plans(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether this thread has built the plans of prompts in `qkv`."""
    return _key(qkv, heads, kv_heads, head_dim) in getattr(_plans, "built", ())


def _key(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int) -> _Key:
    return qkv.device, qkv.dtype, qkv.stride(0), heads, kv_heads, head_dim


def build_prompt_plans(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, most_queries: int) -> bool:
    """Build the plans of all prompts of steps of at most `most_queries` tokens, whose projections are like `qkv` [T,
    (heads + 2 kv_heads) * head_dim] CUDA, of any T, and compare one of each kind with the definition. Returns whether
    this thread has them now: only on compute capability 9.0, for bfloat16 and float16.
    """
    fits = head_dim in _HEAD_DIMS and qkv.dtype in (torch.bfloat16, torch.float16)
    if not fits or torch.cuda.get_device_capability(qkv.device) != _CAPABILITY:
        return False
    try:
        _build(qkv, heads, kv_heads, head_dim, most_queries)
    except RuntimeError as error:  # as all errors of cuDNN, and of memory
        logger.warning("long prompts do not use cuDNN (%s): their attention takes about twice as long", error)
        return False
    if not hasattr(_plans, "built"):
        _plans.built = set()
    _plans.built.add(_key(qkv, heads, kv_heads, head_dim))
    return True


def _build(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, most_queries: int) -> None:
    # Padding before the first query takes up to a grain less one.
    most = min(-(-most_queries // PROMPT_GRAIN), _MOST_GRAINS) + 1
    shape = (1, kv_heads, max(most, *_PART_GRAINS) * PROMPT_GRAIN, head_dim)
    generator = torch.Generator(qkv.device).manual_seed(0)
    options = {"dtype": qkv.dtype, "device": qkv.device, "generator": generator}
    keys, values = (torch.randn(shape, **options) for _ in range(2))
    for grains in range(most, 0, -1):
        rows = grains * PROMPT_GRAIN
        query = torch.empty(rows, qkv.stride(0), dtype=qkv.dtype, device=qkv.device)[:, : heads * head_dim]
        query.copy_(torch.randn(rows, heads * head_dim, **options))
        query = query.view(rows, heads, head_dim).transpose(0, 1)[None]
        for length, causal in ((rows, True), *((part * PROMPT_GRAIN, False) for part in _PART_GRAINS)):
            # A layout as that of gathered keys: contiguous.
            arguments = query, keys[:, :, :length].contiguous(), values[:, :, :length].contiguous(), causal
            attended = cudnn_attend(*arguments)
            if grains == 1:
                _check(*arguments, *attended)


def _check(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    causal: bool,
    attended: torch.Tensor,
    attended_log: torch.Tensor,
) -> None:
    """Raise RuntimeError if the last rows of a result are not as defined: another version of cuDNN may give logarithms
    to another base, or masks from another corner."""
    heads, queries, head_dim = query.shape[1:]
    group = heads // keys.shape[1]
    position = torch.arange(queries - _CHECKED_ROWS, queries, device=query.device)
    wide_keys, wide_values = (x[0].float().repeat_interleave(group, 0) for x in (keys, values))
    scores = query[0, :, -_CHECKED_ROWS:].float() @ wide_keys.transpose(1, 2) * head_dim**-0.5
    if causal:
        scores.masked_fill_(torch.arange(keys.shape[2], device=query.device) > position[:, None], -torch.inf)
    mixed, log = scores.softmax(-1) @ wide_values, scores.logsumexp(-1)
    error = (attended[0, :, -_CHECKED_ROWS:].float() - mixed).norm() / mixed.norm()
    log_error = (attended_log.reshape(heads, queries)[:, -_CHECKED_ROWS:] - log).abs().max()
    if not bool((error < _TOLERANCE) & (log_error < _TOLERANCE)):
        raise RuntimeError(f"its results differ from the definition by {float(error):.1g}, {float(log_error):.1g}")
