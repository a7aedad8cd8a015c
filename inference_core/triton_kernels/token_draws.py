"""Draws tokens on the device, with exactly the distributions and random numbers of `reference_sampler`.

The reference's weights are integers: round(2**44 exp((logit - best) / temperature)) in a fixed order of IEEE 754
operations. The kernel repeats them in that order, and integer sums are exact in any order, so the tokens equal the
CPU's, bit by bit, in any batch.

Filters keep a prefix of a total order (larger weight first, then smaller token id). The prefix is given by its last
element: a threshold, found bit by bit from the top by counting the tokens that reach it, and the last token id among
those equal to it. Counting uses the tokens within 2**-20 of the best, gathered once, or the whole row if these are too
many or do not contain the prefix.

`row_totals` gives the largest logit and the sum of the tokens' weights of each row, from which log-probabilities are
computed.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from inference_core.sampling.reference_sampler import MAX_VOCABULARY, WEIGHT_POWERS
from inference_core.triton_kernels.logits import (
    CHUNK,
    NEAR,
    best_of_chunks_kernel,
    best_of_row,
    gather_near_kernel,
    least_weight,
    order_key,
    point_of,
    weigh,
    weights_of_chunks_kernel,
)

_GATHERED = 16384  # the most tokens of a row that are gathered
_WARPS = 4
_WEIGHT_BITS = tl.constexpr(45)
_KEY_BITS = tl.constexpr(32)
_NO_ID = tl.constexpr((1 << 31) - 1)  # larger than every token id


@triton.jit
def _candidates(row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK: tl.constexpr):
    """BLOCK candidates from `first` on, by ascending id: ids, order keys, weights, and which entries are valid."""
    index = tl.cast(first, tl.int64) + tl.arange(0, BLOCK)
    real = index < end
    if compact:
        ids = tl.load(near_ids + index, mask=real, other=_NO_ID).to(tl.int64)
        logits = tl.load(row + ids, mask=real, other=float("-inf"))
        weights = tl.load(near_weights + index, mask=real, other=0)
    else:
        ids = index
        logits = tl.load(row + ids, mask=real, other=float("-inf"))
        weights = tl.where(real, weigh(logits, best, temperature, powers), 0)
    return ids, order_key(logits), weights, real


@triton.jit
def _reaches(ids, values, threshold, last):
    """Which elements are in the prefix that ends at (threshold, last)."""
    return (values > threshold) | ((values == threshold) & (ids <= last))


@triton.jit
def draw_tokens_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    powers,
    row_best,
    row_best_ids,
    totals,
    near_masses,
    near_counts,
    near_ids,
    near_weights,
    drawn,
    vocabulary,
    stride,
    chunks,
    CAPACITY: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw one row's token to `drawn`; -1 if the row has NaN or +inf, or only -inf."""
    r = tl.program_id(0).to(tl.int64)
    row, near_ids, near_weights = logits + r * stride, near_ids + r * CAPACITY, near_weights + r * CAPACITY
    c = tl.arange(0, CHUNKS)
    best, usable = best_of_row(row_best, r, chunks, CHUNKS)
    value = tl.load(row_best + r * chunks + c, mask=c < chunks, other=float("-inf"))
    best_ids = tl.load(row_best_ids + r * chunks + c, mask=c < chunks, other=0)
    greedy = tl.min(tl.where((value == best) & (c < chunks), best_ids, vocabulary), axis=0)
    token = tl.where(usable, greedy, -1).to(tl.int64)
    temperature = tl.load(temperatures + r)

    if usable & (temperature > 0):
        zero = tl.full((), 0, tl.int64)
        no_ids, all_ids = zero - 1, zero + vocabulary
        top_k, top_p = tl.load(top_ks + r).to(tl.int64), tl.load(top_ps + r)
        least = least_weight(tl.load(min_ps + r))
        filter_k, filter_p = (top_k > 0) & (top_k < vocabulary), top_p < 1.0
        chunk_totals = tl.load(totals + r * chunks + c, mask=c < chunks, other=0)
        total = tl.sum(chunk_totals, axis=0)
        near_mass = tl.sum(tl.load(near_masses + r * chunks + c, mask=c < chunks, other=0), axis=0)
        near = tl.sum(tl.load(near_counts + r * chunks + c, mask=c < chunks, other=0), axis=0).to(tl.int64)
        wanted = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
        # Whether all tokens that pass the filters are near the best.
        held = tl.where(filter_k, top_k <= near, tl.where(filter_p, near_mass >= wanted, least >= NEAR))
        compact = held & (near <= CAPACITY)
        begin, end = zero, tl.where(compact, near, all_ids)

        # Top-k: the largest key that at least k tokens reach.
        key_floor, key_last = no_ids, all_ids
        if filter_k:
            key_floor, above = zero, zero
            for bit in range(_KEY_BITS):
                tried = key_floor + (zero + 1 << (_KEY_BITS - 1 - bit))
                reached = zero
                for first in range(begin, end, BLOCK):
                    ids, keys, weights, real = _candidates(
                        row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
                    )
                    reached += tl.sum((real & (keys >= tried)).to(tl.int64), axis=0)
                enough = reached >= top_k
                key_floor = tl.where(enough, tried, key_floor)
                above = tl.where(enough, above, reached)
            # `above` tokens are beyond the threshold; the first of those equal to it fill up to k.
            ties, total, key_last = zero, zero, no_ids
            for first in range(begin, end, BLOCK):
                ids, keys, weights, real = _candidates(
                    row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
                )
                tie = (real & (keys == key_floor)).to(tl.int64)
                taken = (tie > 0) & (ties + tl.cumsum(tie, axis=0) <= top_k - above)
                key_last = tl.maximum(key_last, tl.max(tl.where(taken, ids, -1), axis=0))
                ties += tl.sum(tie, axis=0)
                total += tl.sum(tl.where(real & ((keys > key_floor) | taken), weights, 0), axis=0)

        # Top-p: the largest weight for which all tokens that reach it have the required mass.
        floor, last = no_ids, all_ids
        if filter_p:
            mass = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
            mass = tl.minimum(tl.maximum(mass, 1), total)
            floor, beyond = zero, zero
            for bit in range(_WEIGHT_BITS):
                tried = floor + (zero + 1 << (_WEIGHT_BITS - 1 - bit))
                reached = zero
                for first in range(begin, end, BLOCK):
                    ids, keys, weights, real = _candidates(
                        row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
                    )
                    kept = (weights >= tried) & _reaches(ids, keys, key_floor, key_last)
                    reached += tl.sum(tl.where(kept, weights, 0), axis=0)
                enough = reached >= mass
                floor = tl.where(enough, tried, floor)
                beyond = tl.where(enough, beyond, reached)
            allowed = (mass - beyond + floor - 1) // floor
            ties, last = zero, no_ids
            for first in range(begin, end, BLOCK):
                ids, keys, weights, real = _candidates(
                    row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
                )
                tie = (real & (weights == floor) & _reaches(ids, keys, key_floor, key_last)).to(tl.int64)
                taken = (tie > 0) & (ties + tl.cumsum(tie, axis=0) <= allowed)
                last = tl.maximum(last, tl.max(tl.where(taken, ids, -1), axis=0))
                ties += tl.sum(tie, axis=0)

        filtered = filter_k | filter_p | (least > 0)
        if filtered:
            total = zero
            for first in range(begin, end, BLOCK):
                ids, keys, weights, real = _candidates(
                    row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
                )
                kept = _reaches(ids, keys, key_floor, key_last) & _reaches(ids, weights, floor, last)
                total += tl.sum(tl.where(kept & (weights >= least), weights, 0), axis=0)

        # Invert the cumulative distribution at point / 2**53: the upper half of a product of 128 bits.
        point, size = point_of(tl.load(seeds + r), tl.load(positions + r)), total.to(tl.uint64)
        target = ((tl.umulhi(point, size) << 11) | ((point * size) >> 53)).to(tl.int64)
        passed = zero
        if filtered == 0:
            # The chunks' totals tell which chunk contains it.
            before = tl.cumsum(chunk_totals, axis=0) <= target
            passed = tl.sum(tl.where(before, chunk_totals, 0), axis=0)
            begin = tl.sum(before.to(tl.int64), axis=0) * BLOCK
            end = tl.minimum(begin + BLOCK, end)
        token = all_ids
        for first in range(begin, end, BLOCK):
            ids, keys, weights, real = _candidates(
                row, near_ids, near_weights, compact, first, end, best, temperature, powers, BLOCK
            )
            kept = _reaches(ids, keys, key_floor, key_last) & _reaches(ids, weights, floor, last)
            weights = tl.where(kept & (weights >= least), weights, 0)
            reached = passed + tl.cumsum(weights, axis=0)
            token = tl.minimum(token, tl.min(tl.where(reached > target, ids, vocabulary), axis=0))
            passed += tl.sum(weights, axis=0)
    tl.store(drawn + r, token)


def draw_tokens(
    drawn: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> None:
    """Write token ids to drawn int64 [R], from edited logits float32 [R, V] with contiguous rows.

    -1 for rows that have NaN or +inf, or only -inf. The other arguments are `step_inputs.PARAM_FIELDS`. Padding rows
    may hold anything. Raises ValueError for a vocabulary whose weights could overflow.
    """
    rows, vocabulary = logits.shape
    if not 1 <= vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"cannot sample from a vocabulary of {vocabulary} tokens; 1 to {MAX_VOCABULARY} are possible")
    if rows == 0:
        return
    block = min(CHUNK, triton.next_power_of_2(vocabulary))
    chunks, capacity = triton.cdiv(vocabulary, block), min(_GATHERED, vocabulary)
    powers = weight_powers(logits.device)

    def scratch(width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(rows, width, dtype=dtype, device=logits.device)

    best, best_ids = scratch(chunks, torch.float32), scratch(chunks, torch.int32)
    totals, near_masses = scratch(chunks, torch.int64), scratch(chunks, torch.int64)
    near_counts = scratch(chunks, torch.int32)
    near_ids, near_weights = scratch(capacity, torch.int32), scratch(capacity, torch.int64)
    sizes = (vocabulary, logits.stride(0), chunks)
    cut: dict[str, Any] = {"CHUNKS": triton.next_power_of_2(chunks), "BLOCK": block}
    options: dict[str, Any] = {"num_warps": _WARPS, "enable_fp_fusion": False}

    best_of_chunks_kernel[(rows, chunks)](logits, best, best_ids, *sizes, BLOCK=block, num_warps=_WARPS)
    weights_of_chunks_kernel[(rows, chunks)](
        *(logits, temperature, powers, best, totals, near_masses, near_counts, *sizes), **cut, **options
    )
    gather_near_kernel[(rows, chunks)](
        *(logits, temperature, top_k, top_p, min_p, powers, best, near_counts, near_ids, near_weights, *sizes),
        CAPACITY=capacity,
        **cut,
        **options,
    )
    draw_tokens_kernel[(rows,)](
        *(logits, temperature, top_k, top_p, min_p, seed, position, powers),
        *(best, best_ids, totals, near_masses, near_counts, near_ids, near_weights, drawn, *sizes),
        CAPACITY=capacity,
        **cut,
        **options,
    )


@functools.cache
def weight_powers(device: torch.device) -> torch.Tensor:
    """The table of 2**(44 + j / 16) on the device, cached after the first copy."""
    return torch.from_numpy(WEIGHT_POWERS).to(device)


_TOTAL_WARPS = 4


def row_totals(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    """From logits float32 [R, V] with contiguous rows, write the largest logit to best float32 [R] and the exact sum of
    `reference_sampler`'s weights at temperature 1 to totals int64 [R]. Undefined for rows that cannot be sampled.
    """
    rows, vocabulary = logits.shape
    if not rows:
        return
    block = min(CHUNK, triton.next_power_of_2(vocabulary))
    chunks = triton.cdiv(vocabulary, block)

    def scratch(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, chunks, dtype=dtype, device=logits.device)

    greatest, places, counts = scratch(torch.float32), scratch(torch.int32), scratch(torch.int32)
    weights, near = scratch(torch.int64), scratch(torch.int64)
    ones = torch.ones(rows, dtype=torch.float64, device=logits.device)
    sizes = (vocabulary, logits.stride(0), chunks)
    best_of_chunks_kernel[(rows, chunks)](logits, greatest, places, *sizes, BLOCK=block, num_warps=_TOTAL_WARPS)
    weights_of_chunks_kernel[(rows, chunks)](
        *(logits, ones, weight_powers(logits.device), greatest, weights, near, counts, *sizes),
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=block,
        num_warps=_TOTAL_WARPS,
        enable_fp_fusion=False,
    )
    best.copy_(greatest.amax(1))
    totals.copy_(weights.sum(1))
