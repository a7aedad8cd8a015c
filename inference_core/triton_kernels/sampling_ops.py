"""Sampling as torch custom ops `aio::*`: `reference_sampler` on the CPU, Triton on CUDA (SPEC AT-07); the same tokens.

Importing this module registers them, without triton.
"""

import torch

from inference_core.triton_kernels import sampling_reference
from inference_core.triton_kernels.registration import register
from inference_core.triton_kernels.sampling_batch import DrawLaws, LogitEdits


def sample(logits: torch.Tensor, edits: LogitEdits | None, laws: DrawLaws, drawn: torch.Tensor) -> None:
    """Write token ids to drawn int64 [R] for logits float32 [R, V], which are edited in place.

    -1 stands for rows where no token can be drawn (`BadLogitsError` elsewhere). All tensors on one device; nothing is
    read back.
    """
    if edits is not None:
        torch.ops.aio.edit_logits(
            *(logits, edits.start, edits.token_ids, edits.bias, edits.uses),
            *(edits.repetition, edits.presence, edits.frequency),
        )
    torch.ops.aio.draw_tokens(
        *(drawn, logits, laws.temperature, laws.top_k, laws.top_p, laws.min_p, laws.seed, laws.position)
    )


def _edit_logits_cuda(logits: torch.Tensor, *edits: torch.Tensor) -> None:
    from inference_core.triton_kernels.logit_edits import edit_logits as launch

    launch(logits, *edits)


def _draw_tokens_cuda(drawn: torch.Tensor, logits: torch.Tensor, *laws: torch.Tensor) -> None:
    from inference_core.triton_kernels.token_draws import draw_tokens as launch

    launch(drawn, logits, *laws)


register(
    "edit_logits(Tensor(a!) logits, Tensor start, Tensor token_ids, Tensor bias, Tensor uses, Tensor repetition, "
    "Tensor presence, Tensor frequency) -> ()",
    cpu=sampling_reference.edit_logits,
    cuda=_edit_logits_cuda,
)
register(
    "draw_tokens(Tensor(a!) drawn, Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seed, Tensor position) -> ()",
    cpu=sampling_reference.draw_tokens,
    cuda=_draw_tokens_cuda,
)
