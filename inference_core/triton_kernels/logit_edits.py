"""Bias, penalties and masks on the device, in place: only the logits of the tokens concerned are touched."""

import torch
import triton
import triton.language as tl

_EDITS = 256


@triton.jit
def edit_logits_kernel(
    logits,
    start,
    token_ids,
    bias,
    uses,
    repetition,
    presence,
    frequency,
    stride,
    BLOCK: tl.constexpr,
):
    """One row: bias, then the repetition penalty on tokens of prompt or output, then presence and frequency."""
    row = tl.program_id(0)
    penalty = tl.load(repetition + row)
    once, per_use = tl.load(presence + row), tl.load(frequency + row)
    end = tl.load(start + row + 1)
    for first in range(tl.load(start + row), end, BLOCK):
        edit = first + tl.arange(0, BLOCK)
        real = edit < end
        place = logits + row.to(tl.int64) * stride + tl.load(token_ids + edit, mask=real, other=0)
        count = tl.load(uses + edit, mask=real, other=-1)
        value = tl.load(place, mask=real, other=0.0) + tl.load(bias + edit, mask=real, other=0.0)
        repeated = tl.where(value < 0, value * penalty, tl.div_rn(value, penalty))
        value = tl.where(count >= 0, repeated, value)
        value = tl.where(count > 0, value - (once + per_use * count.to(tl.float32)), value)
        tl.store(place, value, mask=real)


def edit_logits(
    logits: torch.Tensor,
    start: torch.Tensor,
    token_ids: torch.Tensor,
    bias: torch.Tensor,
    uses: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Edit logits float32 [R, V], unit stride along its rows, by the fields of a `LogitEdits`."""
    if len(logits):
        edit_logits_kernel[(len(logits),)](
            *(logits, start, token_ids, bias, uses, repetition, presence, frequency, logits.stride(0)),
            BLOCK=_EDITS,
            num_warps=4,
            # Every operation rounds by itself, as in `reference_sampler`.
            enable_fp_fusion=False,
        )
