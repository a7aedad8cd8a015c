"""Sampling as torch custom ops `aio::*`: `reference_sampler` on the CPU, Triton on CUDA (SPEC AT-07); the same tokens.

Importing this module registers them, without triton.
"""

import torch

from inference_core.triton_kernels.registration import register
from inference_core.triton_kernels.sampling import sampling_reference


def _edit_logits_cuda(logits: torch.Tensor, *edits: torch.Tensor) -> None:
    from inference_core.triton_kernels.sampling.logit_edits import edit_logits as launch

    launch(logits, *edits)


def _draw_tokens_cuda(drawn: torch.Tensor, logits: torch.Tensor, *laws: torch.Tensor) -> None:
    from inference_core.triton_kernels.sampling.token_draws import draw_tokens as launch

    launch(drawn, logits, *laws)


def _row_totals_cuda(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    from inference_core.triton_kernels.sampling.row_totals import row_totals as launch

    launch(best, totals, logits)


register(
    "edit_logits(Tensor(a!) logits, Tensor rows, Tensor token_ids, Tensor bias, Tensor num_biased, Tensor uses, "
    "Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    cpu=sampling_reference.edit_logits,
    cuda=_edit_logits_cuda,
)
register(
    "draw_tokens(Tensor(a!) drawn, Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seed, Tensor position) -> ()",
    cpu=sampling_reference.draw_tokens,
    cuda=_draw_tokens_cuda,
)
register(
    "row_totals(Tensor(a!) best, Tensor(b!) totals, Tensor logits) -> ()",
    cpu=sampling_reference.row_totals,
    cuda=_row_totals_cuda,
)
