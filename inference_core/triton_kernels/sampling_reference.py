"""Edits and draws in plain torch and NumPy, row by row: the oracle of the device's sampling, and its stand-in."""

import torch

from inference_core.protocol import SamplingParams
from inference_core.reference_sampler import sample_row
from inference_core.step_plan import SampleSpec


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
    """Edit logits float32 [R, V] in place by the fields of a `LogitEdits`."""
    for row, (first, end) in enumerate(zip(start[:-1].tolist(), start[1:].tolist(), strict=True)):
        ids, count = token_ids[first:end].long(), uses[first:end]
        value = logits[row, ids] + bias[first:end]
        repeated = torch.where(value < 0, value * repetition[row], value / repetition[row])
        value = torch.where(count >= 0, repeated, value)
        value = torch.where(count > 0, value - (presence[row] + frequency[row] * count.float()), value)
        logits[row, ids] = value


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
    """Token ids to drawn int64 [R], from logits float32 [R, V] by the fields of a `DrawLaws`; -1 for bad rows."""
    laws = zip(*(column.tolist() for column in (temperature, top_k, top_p, min_p, seed, position)), strict=True)
    for row, (values, (heat, k, p, least, own_seed, place)) in enumerate(zip(logits.numpy(), laws, strict=True)):
        params = SamplingParams(temperature=heat, top_k=k, top_p=p, min_p=least)
        token = sample_row(values, SampleSpec(params, [], [], own_seed, place, ()))
        drawn[row] = -1 if token is None else token.token_id
