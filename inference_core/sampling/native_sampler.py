"""The sampler of the native extension: draws one token per row of logits on the CPU."""

from collections.abc import Sequence

import torch

from inference_core.native.cpu import extension
from inference_core.protocol import TokenLogprob
from inference_core.step_plan import SampledToken, SampleSpec


def sample_rows(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[SampledToken | None]:
    """One token per row of logits [R, V], as `reference_sampler.sample_row` draws it; None where none can be drawn.

    Raises `InvalidRequestError` for a biased, stop or earlier token id outside the vocabulary.
    """
    rows = logits.detach().to("cpu", torch.float32)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    drawn = extension().sample_rows(rows.data_ptr(), rows.stride(0), rows.shape[1], list(specs))
    return [
        SampledToken(token)
        if isinstance(token, int)
        else token and SampledToken(token[0], TokenLogprob(token[0], token[1], token[2]))
        for token in drawn
    ]
