"""Logit edits and draws in plain torch and NumPy, row by row: the oracle of the device's sampling, and its fallback."""

import torch

from inference_core.protocol import SamplingParams
from inference_core.sampling.reference_sampler import sample_row, weights_of
from inference_core.step_plan import SampleSpec


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
    """Edit logits float32 [R, V] in place: row r by row `rows[r]` of an `EditTables`, -1 for none."""
    for r, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        count = int(num_biased[row])
        logits[r, token_ids[row, :count].long()] += bias[row, :count]
        touched = uses[row].nonzero()[:, 0]
        value, times = logits[r, touched], uses[row, touched] >> 1
        value = torch.where(value < 0, value * repetition[r], value / repetition[r])
        logits[r, touched] = torch.where(times > 0, value - (presence[r] + frequency[r] * times.float()), value)


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
    """Draw token ids to drawn int64 [R] from logits float32 [R, V] by `draw_params.PARAM_FIELDS`; -1 for bad rows."""
    laws = zip(*(column.tolist() for column in (temperature, top_k, top_p, min_p, seed, position)), strict=True)
    for row, (values, (heat, k, p, least, own_seed, place)) in enumerate(zip(logits.numpy(), laws, strict=True)):
        params = SamplingParams(temperature=heat, top_k=k, top_p=p, min_p=least)
        token = sample_row(values, SampleSpec(params, [], [], own_seed, place, ()))
        drawn[row] = -1 if token is None else token.token_id


def row_totals(best: torch.Tensor, totals: torch.Tensor, logits: torch.Tensor) -> None:
    """See `row_totals.row_totals`."""
    best.copy_(logits.amax(1))
    for row, values in enumerate(logits.numpy()):
        totals[row] = int(weights_of(values, 1.0).sum()) if bool(best[row].isfinite()) else 0
