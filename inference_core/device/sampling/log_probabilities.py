"""Log-probabilities of drawn tokens and of the most likely ones, from the model's raw logits on the device."""

import math

import torch

from inference_core.protocol import TokenLogprob
from inference_core.sampling.reference_sampler import ONE
from inference_core.triton_kernels.sampling import sampling_ops  # noqa: F401  it registers the custom ops

_ROWS_AT_ONCE = 16  # so that scratch memory stays small
_ID_BITS = 20  # more than the largest vocabulary that can be sampled from


class LogProbabilities:
    """Log-probabilities of one step with `logits` [R, V] and `drawn` int64 [R] on a device. `wanted`: by row, how many
    of the most likely tokens to list.

    The constructor launches the work and the copies to the host without waiting. Sums are exact, and the host finishes
    in double precision, so the numbers equal those of `reference_sampler` bit by bit.
    """

    def __init__(self, logits: torch.Tensor, drawn: torch.Tensor, wanted: dict[int, int]) -> None:
        self._wanted = wanted
        self._parts: list[tuple[list[int], torch.Tensor, torch.Tensor]] = []
        rows = list(wanted)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            places = torch.tensor(part).to(logits.device, non_blocking=True)
            most = max(wanted[row] for row in part)
            values, whole = _measured(logits.index_select(0, places).float(), drawn.index_select(0, places), most)
            self._parts.append((part, _to_host(values), _to_host(whole)))

    def by_row(self) -> dict[int, TokenLogprob]:
        """The log-probabilities by row; call it after the device has finished the step."""
        found: dict[int, TokenLogprob] = {}
        for rows, values, whole in self._parts:
            for row, (best, own, *top), (total, token, *ids) in zip(rows, values.tolist(), whole.tolist(), strict=True):
                if total <= 0 or token < 0:
                    continue  # nothing could be drawn
                log_total, count = math.log(total / ONE), self._wanted[row]
                named = list(zip(ids[:count], top[:count], strict=True))
                found[row] = TokenLogprob(token, own - best - log_total, [(i, x - best - log_total) for i, x in named])
        return found


def _measured(logits: torch.Tensor, drawn: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [n, 2 + k]: the logits of the best, the drawn and the k best tokens; int64 [n, 2 + k]: the sum of
    weights, and the tokens' ids."""
    best = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    totals = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    torch.ops.aio.row_totals(best, totals, logits)
    top = best_tokens(logits, min(most, logits.shape[1]))
    own = logits.gather(1, drawn.clamp(min=0)[:, None])
    values = torch.cat([best[:, None], own, logits.gather(1, top)], 1)
    return values, torch.cat([totals[:, None], drawn[:, None], top], 1)


def best_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids int64 [n, count] of the largest of logits float32 [n, V], in descending order; ties by ascending id."""
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32).long()
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (order << _ID_BITS) - ids
    return -keys.topk(count, dim=1).values & ((1 << _ID_BITS) - 1)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A copy to the host that is complete when the current stream has reached it."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
