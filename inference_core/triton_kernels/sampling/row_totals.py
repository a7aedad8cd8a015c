"""The greatest logit of each row and the sum of its tokens' weights: what log-probabilities are made from."""

import torch
import triton

from inference_core.triton_kernels.sampling.token_draws import weight_powers
from inference_core.triton_kernels.sampling.token_weights import CHUNK, best_of_chunks_kernel, weights_of_chunks_kernel

_WARPS = 4


def row_totals(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    """For logits float32 [R, V], their rows contiguous: to best float32 [R] the greatest, to totals int64 [R] the exact
    sum of `reference_sampler`'s weights at a temperature of 1. Rows that cannot be drawn from give anything.
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
    best_of_chunks_kernel[(rows, chunks)](logits, greatest, places, *sizes, BLOCK=block, num_warps=_WARPS)
    weights_of_chunks_kernel[(rows, chunks)](
        *(logits, ones, weight_powers(logits.device), greatest, weights, near, counts, *sizes),
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=block,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    best.copy_(greatest.amax(1))
    totals.copy_(weights.sum(1))
