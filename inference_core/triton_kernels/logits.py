"""Rows of logits on the device: edits in place, and the arithmetic of `reference_sampler` in Triton.

Edits are bias, penalties and masks; rows without any are not touched. The sampler's arithmetic is repeated operation by
operation, with the passes that need a whole row: a row is cut into chunks that programs process in parallel. Launches
must not fuse multiplications with additions (`enable_fp_fusion=False`): every operation rounds separately, as in the
reference.
"""

import torch
import triton
import triton.language as tl

from inference_core.sampling.reference_sampler import ONE, STEPS_PER_NAT, WEIGHT_TAYLOR

CHUNK = 2048  # tokens
NEAR = tl.constexpr(ONE >> 20)  # a token is near the best one from 2**-20 of its weight on
_ONE = tl.constexpr(float(ONE))
_STEPS_PER_NAT = tl.constexpr(STEPS_PER_NAT)
_GREATEST = tl.constexpr(1.7976931348623157e308)
_T5 = tl.constexpr(WEIGHT_TAYLOR[0])
_T4 = tl.constexpr(WEIGHT_TAYLOR[1])
_T3 = tl.constexpr(WEIGHT_TAYLOR[2])
_T2 = tl.constexpr(WEIGHT_TAYLOR[3])
_T1 = tl.constexpr(WEIGHT_TAYLOR[4])
_ROUNDING = tl.constexpr(6755399441055744.0)  # 1.5 * 2**52
_UNIT = tl.constexpr(4503599627370496.0)  # 2**52
_UNIT_BITS = tl.constexpr(0x4330000000000000)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(z):
    """SplitMix64's step on uint64."""
    z = z + _GOLDEN
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def point_of(seed, position):
    """`reference_sampler.point` of int64 scalars: 53 bits as uint64."""
    start = _mix(seed.to(tl.uint64))
    return _mix(start + (position + 1).to(tl.uint64) * _GOLDEN) >> 11


@triton.jit
def weigh(logits, best, temperature, powers):
    """The weights, int64, of float32 logits; `powers` is `reference_sampler.WEIGHT_POWERS`."""
    scale = tl.minimum(_STEPS_PER_NAT / temperature, _GREATEST)
    steps = (logits.to(tl.float64) - best.to(tl.float64)) * scale
    steps = tl.maximum(steps, -960.0)
    shifted = steps + _ROUNDING
    n = shifted.to(tl.int64, bitcast=True)
    scaled = (tl.load(powers + (n & 15)) + (n << 48)).to(tl.float64, bitcast=True)
    steps = steps - (shifted - _ROUNDING)
    power = (steps * _T5 + _T4) * steps
    power = (power + _T3) * steps
    power = (power + _T2) * steps
    power = (power + _T1) * steps
    power = (power + 1.0) * scaled + _UNIT
    return power.to(tl.int64, bitcast=True) - _UNIT_BITS


@triton.jit
def least_weight(min_p):
    """The minimum weight, int64, of min-p."""
    return tl.ceil(tl.minimum(min_p, 1.0) * _ONE).to(tl.int64)


@triton.jit
def order_key(logits):
    """Map float32 logits to int64 in [0, 2**32) in the same order; both zeros are equal."""
    bits = tl.where(logits == 0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def best_of_chunks_kernel(logits, best, best_ids, vocabulary, stride, chunks, BLOCK: tl.constexpr):
    """The largest logit of one chunk and its first index; NaN if there is one."""
    r, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + r * stride + ids, mask=ids < vocabulary, other=float("-inf"))
    greatest = tl.max(value, axis=0)
    disordered = tl.max((value != value).to(tl.int32), axis=0) > 0
    tl.store(best_ids + r * chunks + chunk, tl.min(tl.where(value == greatest, ids, vocabulary), axis=0))
    tl.store(best + r * chunks + chunk, tl.where(disordered, float("nan"), greatest))


@triton.jit
def best_of_row(best, r, chunks, CHUNKS: tl.constexpr):
    """The largest logit of row r, and whether the row can be sampled."""
    c = tl.arange(0, CHUNKS)
    value = tl.load(best + r * chunks + c, mask=c < chunks, other=float("-inf"))
    greatest = tl.max(tl.where(value != value, float("-inf"), value), axis=0)
    disordered = tl.max((value != value).to(tl.int32), axis=0) > 0
    return greatest, (greatest > float("-inf")) & (greatest < float("inf")) & (disordered == 0)


@triton.jit
def weights_of_chunks_kernel(
    logits,
    temperatures,
    powers,
    best,
    totals,
    near_masses,
    near_counts,
    vocabulary,
    stride,
    chunks,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weight of one chunk, and the number and weight of its tokens near the row's best."""
    r, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    greatest, usable = best_of_row(best, r, chunks, CHUNKS)
    temperature = tl.load(temperatures + r)
    if usable & (temperature > 0):
        ids = chunk * BLOCK + tl.arange(0, BLOCK)
        real = ids < vocabulary
        value = tl.load(logits + r * stride + ids, mask=real, other=float("-inf"))
        weights = tl.where(real, weigh(value, greatest, temperature, powers), 0)
        near = weights >= NEAR
        tl.store(totals + r * chunks + chunk, tl.sum(weights, axis=0))
        tl.store(near_masses + r * chunks + chunk, tl.sum(tl.where(near, weights, 0), axis=0))
        tl.store(near_counts + r * chunks + chunk, tl.sum(near.to(tl.int32), axis=0))


@triton.jit
def gather_near_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    powers,
    best,
    near_counts,
    near_ids,
    near_weights,
    vocabulary,
    stride,
    chunks,
    CAPACITY: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Ids and weights of one chunk's tokens near the best, behind those of the chunks before; filtered rows only."""
    r, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    greatest, usable = best_of_row(best, r, chunks, CHUNKS)
    temperature = tl.load(temperatures + r)
    filtered = (tl.load(top_ks + r) > 0) | (tl.load(top_ps + r) < 1.0) | (tl.load(min_ps + r) > 0.0)
    if usable & (temperature > 0) & filtered:
        c = tl.arange(0, CHUNKS)
        first = tl.sum(tl.load(near_counts + r * chunks + c, mask=c < chunk, other=0), axis=0)
        ids = chunk * BLOCK + tl.arange(0, BLOCK)
        real = ids < vocabulary
        value = tl.load(logits + r * stride + ids, mask=real, other=float("-inf"))
        weights = tl.where(real, weigh(value, greatest, temperature, powers), 0)
        near = (weights >= NEAR).to(tl.int32)
        slot = first + tl.cumsum(near, axis=0) - near
        kept = (near > 0) & (slot < CAPACITY)
        tl.store(near_ids + r * CAPACITY + slot, ids, mask=kept)
        tl.store(near_weights + r * CAPACITY + slot, weights, mask=kept)


_BIASED = 128  # tokens per pass
_CHUNK = 2048  # tokens per program


@triton.jit
def bias_rows_kernel(logits, rows, token_ids, biases, num_biased, stride, CAPACITY: tl.constexpr, BLOCK: tl.constexpr):
    """One row's biases; its token ids are distinct."""
    r = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + r).to(tl.int64)
    if row < 0:
        return
    count = tl.load(num_biased + row)
    for first in range(0, count, BLOCK):
        index = first + tl.arange(0, BLOCK)
        real = index < count
        at = logits + r * stride + tl.load(token_ids + row * CAPACITY + index, mask=real, other=0)
        value = tl.load(at, mask=real, other=0.0) + tl.load(biases + row * CAPACITY + index, mask=real, other=0.0)
        tl.store(at, value, mask=real)


@triton.jit
def penalise_rows_kernel(logits, rows, uses, repetition, presence, frequency, vocabulary, stride, BLOCK: tl.constexpr):
    """One chunk of one row: the repetition penalty on tokens of prompt or output, then presence and frequency."""
    r = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + r).to(tl.int64)
    if row < 0:
        return
    penalty, once, per_use = tl.load(repetition + r), tl.load(presence + r), tl.load(frequency + r)
    if (penalty != 1.0) | (once != 0.0) | (per_use != 0.0):
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        real = token < vocabulary
        used = tl.load(uses + row * vocabulary + token, mask=real, other=0)
        touched = used > 0
        at = logits + r * stride + token
        value = tl.load(at, mask=touched, other=0.0)
        value = tl.where(value < 0, value * penalty, tl.div_rn(value, penalty))
        times = used >> 1
        value = tl.where(times > 0, value - (once + per_use * times.to(tl.float32)), value)
        tl.store(at, value, mask=touched)


def edit_logits(
    logits: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    bias: torch.Tensor,
    num_biased: torch.Tensor,
    uses: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Edit logits float32 [R, V], unit stride along its rows. Row r uses row `rows[r]` int32 of the `EditTables`'
    arrays (-1: not edited) and the penalties `repetition`, `presence`, `frequency` float32 [R]."""
    if not len(logits):
        return
    vocabulary, stride = logits.shape[1], logits.stride(0)
    bias_rows_kernel[(len(logits),)](
        *(logits, rows, token_ids, bias, num_biased, stride), CAPACITY=token_ids.shape[1], BLOCK=_BIASED, num_warps=4
    )
    penalise_rows_kernel[(len(logits), triton.cdiv(vocabulary, _CHUNK))](
        *(logits, rows, uses, repetition, presence, frequency, vocabulary, stride),
        BLOCK=_CHUNK,
        num_warps=4,
        # Every operation rounds separately, as in `reference_sampler`.
        enable_fp_fusion=False,
    )
