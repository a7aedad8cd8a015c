"""Log-probabilities of drawn tokens and of the most likely ones, from the model's raw logits on the device."""

import math

import torch

from inference_core.protocol import TokenLogprob
from inference_core.sampling.reference_sampler import ONE
from inference_core.triton_kernels.sampling import sampling_ops  # noqa: F401  it registers the custom ops

_ROWS_AT_ONCE = 16  # so that scratch memory stays small
_ID_BITS = 20  # more than the largest vocabulary that can be sampled from


class LogProbabilities:
    """Of one step, whose `logits` [R, V] are on a device, `drawn` int64 [R] beside them; `wanted`: how many of the most
    likely tokens each of some rows is to name.

    Everything is launched and copied to the host here, nothing is waited for. Sums are exact, and the last steps are
    the host's, in double precision: the numbers are those of `reference_sampler`, bit by bit.
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
        """Once the device is done with the step."""
        found: dict[int, TokenLogprob] = {}
        for rows, values, whole in self._parts:
            for row, (best, own, *top), (total, token, *ids) in zip(rows, values.tolist(), whole.tolist(), strict=True):
                if total <= 0 or token < 0:
                    continue  # nothing could be drawn from this row
                log_total, count = math.log(total / ONE), self._wanted[row]
                named = list(zip(ids[:count], top[:count], strict=True))
                found[row] = TokenLogprob(token, own - best - log_total, [(i, x - best - log_total) for i, x in named])
        return found


def _measured(logits: torch.Tensor, drawn: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [n, 2 + k]: the best logit, the drawn token's, those of the k best; int64 [n, 2 + k]: the sum of weights,
    and whose the logits are."""
    best = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    totals = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    torch.ops.aio.row_totals(best, totals, logits)
    top = best_tokens(logits, min(most, logits.shape[1]))
    own = logits.gather(1, drawn.clamp(min=0)[:, None])
    values = torch.cat([best[:, None], own, logits.gather(1, top)], 1)
    return values, torch.cat([totals[:, None], drawn[:, None], top], 1)


def best_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids int64 [n, count] of the greatest of logits float32 [n, V], best first; of equal ones the smaller id first."""
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32).long()
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (order << _ID_BITS) - ids
    return -keys.topk(count, dim=1).values & ((1 << _ID_BITS) - 1)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A copy that is complete once the current stream has come this far."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
