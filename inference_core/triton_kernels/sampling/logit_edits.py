"""Bias, penalties and masks on the device, in place: rows that have none are left alone."""

import torch
import triton
import triton.language as tl

_BIASED = 128  # tokens of one pass
_CHUNK = 2048  # tokens of one program


@triton.jit
def bias_rows_kernel(logits, rows, token_ids, biases, num_biased, stride, CAPACITY: tl.constexpr, BLOCK: tl.constexpr):
    """One row's biases; its token ids are distinct."""
    r = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + r).to(tl.int64)
    if row < 0:
        return
    count = tl.load(num_biased + row)
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        real = place < count
        at = logits + r * stride + tl.load(token_ids + row * CAPACITY + place, mask=real, other=0)
        value = tl.load(at, mask=real, other=0.0) + tl.load(biases + row * CAPACITY + place, mask=real, other=0.0)
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
    """Edit logits float32 [R, V], unit stride along its rows. Row r has row `rows[r]` int32 of the `EditTables`' arrays
    (-1: it is left alone) and the penalties `repetition`, `presence`, `frequency` float32 [R]."""
    if not len(logits):
        return
    vocabulary, stride = logits.shape[1], logits.stride(0)
    bias_rows_kernel[(len(logits),)](
        *(logits, rows, token_ids, bias, num_biased, stride),
        CAPACITY=token_ids.shape[1],
        BLOCK=_BIASED,
        num_warps=4,
    )
    penalise_rows_kernel[(len(logits), triton.cdiv(vocabulary, _CHUNK))](
        *(logits, rows, uses, repetition, presence, frequency, vocabulary, stride),
        BLOCK=_CHUNK,
        num_warps=4,
        # Every operation rounds by itself, as in `reference_sampler`.
        enable_fp_fusion=False,
    )
