"""Attention over the paged cache for ragged batches: prefill, chunks, decode and verification in one kernel family.

A program takes one KV head and a block of queries, packed with all query heads that share the KV head, so that each
key and value is read once per group (Ainslie et al. 2023; SPEC AT-04). It iterates over the context in tiles with an
online softmax (Milakov and Gimelshein 2018; Dao 2023) in float32. If few sequences would leave processors idle, several
programs split a context and a second kernel merges their results (split-KV).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.cache_writes import first_blocks, unpack_cache, unpacked_cache
from inference_core.triton_kernels.layer_cache import ALIGNMENT, LayerCache
from inference_core.triton_kernels.prompt_attention import attend_prompt, cudnn_attend, has_prompt_plans
from inference_core.triton_kernels.tiles import (
    PROMPT_FIELDS,
    AttentionTile,
    choose_splits,
    choose_tile,
    min_tiles,
    padded,
)

_LOG2_E = math.log2(math.e)
# Number of processors assumed if there is no device: for compilation ahead of time and the interpreter.
_DEFAULT_PROCESSORS = 132
# Memory for an unpacked copy of a layer's contexts. KV heads are taken some at a time, so longer ones fit in, too.
_UNPACKED_BYTES = 64 << 20


@triton.jit
def _power_of_two(x):
    """The largest power of two of at most x > 0, float32, and its reciprocal; of 0, 0 and a large number."""
    bits = x.to(tl.int32, bitcast=True) & 0x7F800000
    return bits.to(tl.float32, bitcast=True), ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit
def _attend_tiles(
    query,
    query_power,
    mixed,
    total,
    highest,
    unit,
    first_tile,
    end_tile,
    position,
    seen,
    table,
    keys,
    values,
    scales,
    scale,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SCALED: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the tiles [first_tile, end_tile) to the running sums. Every row sees all of an unmasked tile.

    SCALED: the cache holds E4M3, converted to `query`'s dtype. `query_power` [ROWS]: a factor of a row's scores.
    """
    dims = tl.arange(0, HEAD_PAD)
    for tile in range(first_tile, end_tile):
        token = tile * TILE + tl.arange(0, TILE)
        # Beyond the end, read the last token again: unwritten slots may hold NaN, and 0 x NaN is NaN.
        cached = tl.minimum(token, seen - 1)
        # In this form the compiler knows that rows are aligned to 16 numbers, and reads 16 bytes at a time.
        offset = tl.load(table + cached // BLOCK_SIZE)
        block = offset // (ITEM_SIZE * ALIGN) * ALIGN
        row = block + (cached % BLOCK_SIZE) * HEAD_DIM
        at = row[:, None] + dims[None, :]
        if HEAD_PAD == HEAD_DIM:
            key = tl.load(keys + at)
        else:
            key = tl.load(keys + at, mask=dims[None, :] < HEAD_DIM, other=0.0)
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision=PRECISION) * scale
        if SCALED:
            word = tl.load(scales + offset // 4 + cached % BLOCK_SIZE)
            scores *= (word << 16).to(tl.float32, bitcast=True)[None, :] * query_power[:, None]
            value_scale = ((word >> 16) << 16).to(tl.float32, bitcast=True)
        if CAP > 0:  # tanh(x) = 1 - 2 / (exp(2 x) + 1), for x = score / cap
            scores = CAP * (1.0 - 2.0 / (tl.math.exp2(scores) + 1.0))
        if MASKED:
            allowed = token[None, :] <= position[:, None]
            if WINDOW > 0:
                allowed &= token[None, :] > position[:, None] - WINDOW
            scores = tl.where(allowed, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        base = new_highest
        if MASKED:  # a row may have seen nothing yet
            base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights = tl.math.exp2(scores - base[:, None])
        shrink = tl.math.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        if HEAD_PAD == HEAD_DIM:
            value = tl.load(values + at)
        else:
            value = tl.load(values + at, mask=dims[None, :] < HEAD_DIM, other=0.0)
        value = value.to(query.dtype)
        if SCALED:
            # `mixed` counts a row's `unit`, a power of two with which the largest of its terms so far is about 1, since
            # products of weights and scales may have any size, and float16 has no more than 2**-24.
            weights *= value_scale[None, :]
            new_unit, inverse = _power_of_two(tl.maximum(tl.max(weights, 1), unit * shrink))
            weights *= inverse[:, None]
            shrink *= unit * inverse
            unit = new_unit
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weights.to(query.dtype), value, mixed, input_precision=PRECISION)
        highest = new_highest
    return mixed, total, highest, unit


@triton.jit
def _find_sequence(index, query_start, num_sequences, QUERIES: tl.constexpr):
    """The last sequence whose first block is at or before block `index`. Sequence s starts at block
    query_start[s] // QUERIES + s, so it has as many blocks as it needs, or one more."""
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_start + middle) // QUERIES + middle <= index
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    return low


@triton.jit(do_not_specialize=["num_sequences"])
def paged_attention_kernel(
    queries,
    out,
    partial,
    partial_log,
    cache,
    scales,
    block_offsets,
    table_start,
    query_start,
    context_len,
    num_sequences,
    query_stride,
    out_stride,
    layer_start,
    values_start,
    scales_start,
    scale,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Programs: query blocks x KV heads x splits.

    `scale`: of the scores, for base-2 exponentials. CAP: if not 0, scores are CAP * tanh(x), where `scale` times the
    product is 2 x log2(e). ONE_BLOCK: every sequence has at most QUERIES queries. With SPLITS > 1, `partial` float32
    [T, HEADS, SPLITS, HEAD_DIM] and `partial_log` float32 [T, HEADS, SPLITS] replace `out`: each split's
    softmax-weighted mean, and the base-2 logarithm of its sum of weights.
    """
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if ONE_BLOCK:
        sequence = tl.program_id(0)
        begin = tl.load(query_start + sequence)
        first_query = 0
    else:
        # The last queries of a prompt have the longest contexts: start them first, and let short programs fill the end.
        index = tl.num_programs(0) - 1 - tl.program_id(0)
        sequence = _find_sequence(index, query_start, num_sequences, QUERIES)
        begin = tl.load(query_start + sequence)
        first_query = (index - begin // QUERIES - sequence) * QUERIES
    query_len = tl.load(query_start + sequence + 1) - begin
    if first_query >= query_len:
        return
    context = tl.load(context_len + sequence)
    earlier = context - query_len

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_PAD)
    query_index = first_query + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    wanted = (rows < QUERIES * GROUP) & (query_index < query_len)
    token = (begin + query_index).to(tl.int64)
    wanted_at = wanted[:, None] & (dims[None, :] < HEAD_DIM)
    query = tl.load(
        queries + token[:, None] * query_stride + head[:, None] * HEAD_DIM + dims[None, :], mask=wanted_at, other=0.0
    )
    position = earlier + query_index
    query_power = tl.full([ROWS], 1.0, tl.float32)
    if SCALED and query.dtype != tl.float32:
        # E4M3 becomes float16 in one instruction, and bfloat16 in several.
        query_power, inverse = _power_of_two(tl.max(tl.abs(query.to(tl.float32)), 1))
        query = (query.to(tl.float32) * inverse[:, None]).to(tl.float16)

    seen = earlier + tl.minimum(first_query + QUERIES, query_len)
    first_tile = 0
    if WINDOW > 0:
        first_tile = tl.maximum(earlier + first_query + 1 - WINDOW, 0) // TILE
    end_tile = tl.cdiv(seen, TILE)
    if SPLITS > 1:
        share = tl.maximum(tl.cdiv(end_tile - first_tile, SPLITS), MIN_TILES)
        first_tile += split * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    table = block_offsets + tl.load(table_start + sequence)
    keys = cache + layer_start + kv_head * (BLOCK_SIZE * HEAD_DIM)
    values = keys + values_start
    scales += scales_start + kv_head * BLOCK_SIZE
    mixed = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    unit = tl.full([ROWS], 1.0, tl.float32)
    if not ONE_BLOCK and WINDOW == 0:
        # Tiles that are fully visible to the first row need no mask.
        full_end = tl.minimum((earlier + first_query + 1) // TILE, end_tile)
        mixed, total, highest, unit = _attend_tiles(
            query, query_power, mixed, total, highest, unit, first_tile, full_end, position, seen, table, keys, values,
            scales, scale,
            BLOCK_SIZE, HEAD_DIM, HEAD_PAD, ITEM_SIZE, ALIGN, WINDOW, CAP, SCALED, TILE, False, PRECISION,
        )  # fmt: skip
        first_tile = tl.maximum(first_tile, full_end)
    mixed, total, highest, unit = _attend_tiles(
        query, query_power, mixed, total, highest, unit, first_tile, end_tile, position, seen, table, keys, values,
        scales, scale,
        BLOCK_SIZE, HEAD_DIM, HEAD_PAD, ITEM_SIZE, ALIGN, WINDOW, CAP, SCALED, TILE, True, PRECISION,
    )  # fmt: skip

    if SCALED:
        mixed *= unit[:, None]
    if SPLITS == 1:
        mixed = mixed * (1.0 / total)[:, None]
        at = token[:, None] * out_stride + head[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=wanted_at)
    else:
        row = (token * HEADS + head) * SPLITS + split
        log = tl.where(total > 0, highest + tl.math.log2(total), float("-inf"))
        mixed = mixed * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        tl.store(partial + row[:, None] * HEAD_DIM + dims[None, :], mixed, mask=wanted_at & (total > 0)[:, None])
        tl.store(partial_log + row, log, mask=wanted)


@triton.jit(do_not_specialize=["num_sequences"])
def merge_splits_kernel(
    partial,
    partial_log,
    out,
    query_start,
    num_sequences,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Programs: tokens x heads. Averages the splits' means by their sums of weights; empty splits are skipped."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(query_start + num_sequences):
        return
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, HEAD_PAD)
    row = (token * HEADS + head) * SPLITS + splits
    log = tl.load(partial_log + row)
    weights = tl.math.exp2(log - tl.max(log, 0))
    filled = (log > float("-inf"))[:, None] & (dims[None, :] < HEAD_DIM)
    means = tl.load(partial + row[:, None] * HEAD_DIM + dims[None, :], mask=filled, other=0.0)
    mixed = tl.sum(means * weights[:, None], 0) / tl.sum(weights, 0)
    at = token * out_stride + head * HEAD_DIM + dims
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def paged_attention(
    qkv: torch.Tensor,
    cache: LayerCache,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    out: torch.Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
    max_query_len: int | None = None,
    context_blocks: int = 0,
    prompts: Sequence[int] = (),
    tile: AttentionTile | None = None,
    splits: int | None = None,
) -> None:
    """out[t, h] = softmax(q K^T / sqrt(head_dim)) V over the tokens visible to t, for the tokens of every sequence.

    `qkv` [T, (heads + 2 kv_heads) * head_dim], of which the queries are read, and `out` [T, heads * head_dim], both
    float32, float16 or bfloat16 with contiguous rows; T may be more than the sequences' tokens, and the rest of `out`
    is not written. The other tensors are as in `AttentionBatch`, on the same device. `window` 0: none. `softcap` c: if
    not 0, scores are c * tanh(score / c) (Gemma 2). `max_query_len` bounds the query lengths, T if None.
    `context_blocks`: if not 0, at least the number of blocks of all contexts, which are unpacked first if the cache has
    scales. `prompts`: `PROMPT_FIELDS` numbers for each sequence, in order, that cuDNN attends if the model's plans are
    built. `splits`: programs per context, a power of two.
    """
    layout = cache.layout
    tables = (block_offsets, table_start, query_start, context_len)
    if prompts and not window and not softcap:
        heads = out.shape[1] // layout.head_dim
        if has_prompt_plans(qkv, heads, layout.num_kv_heads, layout.head_dim):
            _attend_prompts(qkv, cache, *tables, out, prompts, max_query_len=max_query_len, tile=tile, splits=splits)
            return
    head_bytes = context_blocks * 2 * cache.head_numbers * qkv.element_size()
    if cache.has_scales and 0 < head_bytes <= _UNPACKED_BYTES:
        options = {"window": window, "softcap": softcap, "max_query_len": max_query_len, "tile": tile, "splits": splits}
        _attend_unpacked(qkv, cache, *tables, out, context_blocks, _UNPACKED_BYTES // head_bytes, **options)
        return
    kv_heads, head_dim = layout.num_kv_heads, layout.head_dim
    heads = out.shape[1] // head_dim
    group, tokens, sequences = heads // kv_heads, qkv.shape[0], context_len.shape[0]
    if not tokens or not sequences:
        return
    longest = min(max_query_len or tokens, tokens)
    tile = tile or choose_tile(
        max_query_len=longest,
        group=group,
        head_dim=head_dim,
        cache_itemsize=cache.itemsize,
        itemsize=qkv.element_size(),
    )
    queries = tile.rows // group
    one_block = longest <= queries
    blocks = sequences if one_block else tokens // queries + sequences
    splits = splits or choose_splits(blocks=blocks, kv_heads=kv_heads, processors=_processors(qkv.device))
    head_pad = padded(head_dim)
    partial, partial_log = out, out
    if splits > 1:
        partial = torch.empty(tokens, heads, splits, head_dim, dtype=torch.float32, device=out.device)
        partial_log = torch.empty(tokens, heads, splits, dtype=torch.float32, device=out.device)
    paged_attention_kernel[(blocks, kv_heads, splits)](
        qkv,
        out,
        partial,
        partial_log,
        cache.numbers,
        cache.scales,
        block_offsets,
        table_start,
        query_start,
        context_len,
        sequences,
        qkv.stride(0),
        out.stride(0),
        cache.layer_start,
        cache.values_start,
        cache.scales_start,
        head_dim**-0.5 * _LOG2_E * (2.0 / softcap if softcap else 1.0),
        GROUP=group,
        HEADS=heads,
        HEAD_DIM=head_dim,
        HEAD_PAD=head_pad,
        BLOCK_SIZE=layout.block_size,
        ITEM_SIZE=cache.itemsize,
        ALIGN=ALIGNMENT,
        WINDOW=window,
        CAP=softcap * _LOG2_E,
        SCALED=cache.has_scales,
        ROWS=tile.rows,
        QUERIES=queries,
        TILE=tile.tokens,
        SPLITS=splits,
        MIN_TILES=min_tiles(tile),
        ONE_BLOCK=one_block,
        PRECISION="tf32x3" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        merge_splits_kernel[(tokens, heads)](
            partial,
            partial_log,
            out,
            query_start,
            sequences,
            out.stride(0),
            HEADS=heads,
            HEAD_DIM=head_dim,
            HEAD_PAD=head_pad,
            SPLITS=splits,
            num_warps=4 if splits * head_pad >= 1024 else 1,
            num_stages=1,
        )


def _attend_prompts(
    qkv: torch.Tensor,
    cache: LayerCache,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    out: torch.Tensor,
    prompts: Sequence[int],
    **options: Any,
) -> None:
    """As `paged_attention`: `prompts` by cuDNN, and the sequences before, between and behind them by the kernel."""

    def attend_others(first: int, end: int, row: int, end_row: int) -> None:
        if first < end and row < end_row:
            tables = (table_start[first:end], query_start[first : end + 1] - row, context_len[first:end])
            paged_attention(qkv[row:end_row], cache, block_offsets, *tables, out[row:end_row], **options)

    sequence = row = 0
    for start in range(0, len(prompts), PROMPT_FIELDS):
        index, first, queries, context = prompts[start : start + PROMPT_FIELDS]
        attend_others(sequence, index, row, first)
        table = table_start[index : index + 1]
        attend_prompt(qkv, cache, block_offsets, table, first, queries, context, out, cudnn_attend)
        sequence, row = index + 1, first + queries
    attend_others(sequence, len(context_len), row, len(qkv))


def _attend_unpacked(
    qkv: torch.Tensor,
    cache: LayerCache,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    out: torch.Tensor,
    blocks: int,
    heads_at_once: int,
    **options: Any,
) -> None:
    """As `paged_attention`, over a copy of `heads_at_once` KV heads at a time in the dtype of `qkv`."""
    layout = cache.layout
    kv_heads = layout.num_kv_heads
    width = out.shape[1] // kv_heads  # of the queries that share a KV head
    first_block = first_blocks(context_len, layout.block_size)
    head_bytes = blocks * 2 * cache.head_numbers * qkv.element_size()
    memory = torch.empty(min(heads_at_once, kv_heads) * head_bytes, dtype=torch.uint8, device=qkv.device)
    for first in range(0, kv_heads, heads_at_once):
        heads = min(heads_at_once, kv_heads - first)
        unpacked = unpacked_cache(memory, layout, heads, qkv.dtype)
        unpack_cache(cache, unpacked, first, block_offsets, table_start, first_block, blocks)
        offsets = torch.arange(blocks, device=qkv.device) * unpacked.layout.block_bytes
        columns = slice(first * width, (first + heads) * width)
        tables = (offsets, first_block[:-1], query_start, context_len)
        paged_attention(qkv[:, columns], unpacked, *tables, out[:, columns], **options)


def _processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device."""
    return _cuda_processors(device.index) if device.type == "cuda" else _DEFAULT_PROCESSORS


@functools.cache
def _cuda_processors(index: int | None) -> int:
    return int(torch.cuda.get_device_properties(index or 0).multi_processor_count)
