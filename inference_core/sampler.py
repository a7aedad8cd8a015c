"""Draws next tokens from logits, row by row, so that a request's tokens never depend on its neighbours.

Every filter keeps a prefix of one total order (greater logit first, then smaller token id), so ties
are deterministic. The arithmetic on a row is float64 NumPy over that row alone: the same row gives the
same token and the same log-probabilities in any batch. The draw is counter-based: one uniform
number per (seed, position), no generator state to save when a sequence is preempted.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from inference_core.errors import BadLogitsError, InvalidRequestError
from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.step_plan import SampledToken, SampleSpec

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# A nucleus rarely reaches down to tokens this unlikely relative to the best one, and sorting the few
# tokens above costs microseconds, sorting a whole vocabulary half a millisecond.
_NEAR = 1e-3
_BLOCK = 256


def sample(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[SampledToken]:
    """Draw one token per row of `logits` [R, V] float32 (any device, read only); `specs` has length R.

    Order of application as in `SamplingParams`. Raises `BadLogitsError` naming the rows that hold NaN or
    +inf, or where every token is masked (-inf), and `InvalidRequestError` for a biased or stop token id outside
    the vocabulary.
    """
    if not specs:
        return []
    logits = logits.detach()
    rows, vocab = logits.shape
    if rows != len(specs):
        raise ValueError(f"{rows} rows of logits for {len(specs)} sample specs; give one spec per row")
    best, bad = _best_of_rows(logits)
    tokens = [SampledToken(token_id) for token_id in best]
    careful = [row for row, spec in enumerate(specs) if row not in bad and not _plainly_greedy(spec)]
    for row, raw in zip(careful, _rows_on_host(logits, careful), strict=True):
        token = _sample_row(raw, specs[row])
        if token is None:
            bad.add(row)
        else:
            tokens[row] = token
    if bad:
        raise BadLogitsError(sorted(bad), vocab)
    return tokens


def distribution(raw: Logits, spec: SampleSpec) -> Floats:
    """The law [V] that `sample` draws from for one row of raw logits [V]; greedy puts all mass on the best token.

    Raises `BadLogitsError` where no token can be drawn.
    """
    row = _adjusted(raw, spec)
    if not np.isfinite(row.max()):
        raise BadLogitsError([0], len(row))
    law = np.zeros(len(row))
    if spec.params.temperature == 0:
        law[row.argmax()] = 1.0
    else:
        ids, weights = _filtered(row, spec.params)
        law[slice(None) if ids is None else ids] = weights / weights.sum()
    return law


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a pure function of (seed, position).

    Element `position` of the SplitMix64 stream that starts at the mixed seed (Steele, Lea, Flood,
    "Fast splittable pseudorandom number generators", 2014); any integer is a seed, taken modulo 2**64.
    """
    start = _mix(seed & _MASK)
    return (_mix((start + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _best_of_rows(logits: torch.Tensor) -> tuple[list[int], set[int]]:
    """The greatest logit's first index per row, and the rows without a finite one (NaN counts as greatest)."""
    if logits.device.type == "cpu":
        # NumPy's argmax is vectorised over a row and many times faster here than torch's on a CPU.
        host = logits.float().numpy()
        index = host.argmax(axis=-1)
        best, finite = index.tolist(), np.isfinite(host[np.arange(len(host)), index]).tolist()
    else:
        index = logits.argmax(dim=-1)
        best, finite = index.tolist(), logits.gather(1, index[:, None])[:, 0].isfinite().tolist()
    return best, {row for row, ok in enumerate(finite) if not ok}


def _rows_on_host(logits: torch.Tensor, rows: list[int]) -> list[Logits]:
    """The named rows as float32 arrays: views where the logits are there already, else one copy for all."""
    if not rows:
        return []
    if logits.device.type == "cpu":
        host = logits.float().numpy()
        return [host[row] for row in rows]
    return list(logits[rows].float().cpu().numpy())


def _plainly_greedy(spec: SampleSpec) -> bool:
    params = spec.params
    return params.temperature == 0 and params.logprobs is None and not _is_adjusted(spec)


def _is_adjusted(spec: SampleSpec) -> bool:
    params = spec.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or spec.position < params.min_tokens
    )


def _sample_row(raw: Logits, spec: SampleSpec) -> SampledToken | None:
    """One row, alone; None where no token is left to draw."""
    params = spec.params
    row = _adjusted(raw, spec) if _is_adjusted(spec) else raw
    best = int(row.argmax())
    if not np.isfinite(row[best]):
        return None
    token_id = best
    if params.temperature > 0:
        ids, weights = _filtered(row, params)
        token_id = _draw(ids, weights, uniform(spec.seed, spec.position))
    if params.logprobs is None:
        return SampledToken(token_id)
    return SampledToken(token_id, _logprob(raw, token_id, params.logprobs))


def _adjusted(raw: Logits, spec: SampleSpec) -> Logits:
    """A copy with bias, penalties and the minimum-length mask applied, in this order.

    Repetition as in Keskar et al., "CTRL", 2019, over prompt and output; presence and frequency as in OpenAI's
    API reference, over the output alone.
    """
    params, row = spec.params, raw.copy()
    if params.logit_bias:
        ids = _token_ids(params.logit_bias, len(row), "logit_bias")
        row[ids] += np.fromiter(params.logit_bias.values(), np.float32, len(ids))
    if params.repetition_penalty != 1.0:
        seen = np.fromiter({*spec.prompt_token_ids, *spec.output_token_ids}, np.intp)
        scores = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(scores < 0, scores * penalty, scores / penalty)
    if (params.presence_penalty or params.frequency_penalty) and spec.output_token_ids:
        counts = Counter(spec.output_token_ids)
        used = np.fromiter(counts, np.intp, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        row[used] -= params.presence_penalty + params.frequency_penalty * times
    if spec.position < params.min_tokens:
        row[_token_ids((*spec.eos_token_ids, *params.stop_token_ids), len(row), "stop_token_ids")] = -np.inf
    return row


def _token_ids(ids: Collection[int], vocab: int, param: str) -> Ids:
    for token_id in ids:
        if not 0 <= token_id < vocab:
            raise InvalidRequestError(
                f"token id {token_id} in {param} is not in the vocabulary (0..{vocab - 1})", param
            )
    return np.fromiter(ids, np.intp, len(ids))


def _filtered(row: Logits, params: SamplingParams) -> tuple[Ids | None, Floats]:
    """Token ids, ascending, that survive top-k, top-p and min-p, and their unnormalised probabilities.

    Ids are None for the whole vocabulary. The best token has weight 1, so min-p is a plain threshold.
    """
    ids = _largest(row, params.top_k) if 0 < params.top_k < len(row) else None
    # Relative to the best logit first: dividing by a tiny temperature then cannot make a NaN.
    weights = (row if ids is None else row[ids]).astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):
        weights /= params.temperature
    np.exp(weights, out=weights)
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p * float(weights.sum()))
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= min(params.min_p, 1.0))
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    return ids, weights


def _nucleus(weights: Floats, mass: float) -> Ids:
    """Indices, ascending, of the fewest best weights that reach `mass`, at least one (Holtzman et al. 2020)."""
    near = np.flatnonzero(weights >= _NEAR)
    if float(weights[near].sum()) < mass:
        near = np.arange(len(weights))
    ordered = np.sort(weights[near])[::-1]
    count = int(np.searchsorted(np.cumsum(ordered), mass)) + 1
    return near if count >= len(near) else near[_largest(weights[near], count)]


def _largest(values: Logits | Floats, k: int) -> Ids:
    """Indices, ascending, of the `k` largest values; of equal ones the first."""
    if k >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - k)[len(values) - k]
    near = np.flatnonzero(values >= least)
    if len(near) == k:
        return near
    ties = np.flatnonzero(values[near] == least)
    return np.delete(near, ties[k - len(near) :])


def _draw(ids: Ids | None, weights: Floats, point: float) -> int:
    """Invert the cumulative distribution at `point` in [0, 1); a token of weight 0 is never drawn.

    In two levels, since a running sum over a whole vocabulary costs as much as all the rest.
    """
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)))
    target = point * float(blocks[-1])
    block = int(np.searchsorted(blocks, target, side="right"))
    part = weights[block * _BLOCK : (block + 1) * _BLOCK]
    within = np.cumsum(part)
    if block:
        target -= float(blocks[block - 1])
    # Rounding may push the target past the block's own sum: its last token of any weight is meant then.
    last = int(np.flatnonzero(part)[-1])
    place = block * _BLOCK + min(int(np.searchsorted(within, target, side="right")), last)
    return place if ids is None else int(ids[place])


def _logprob(raw: Logits, token_id: int, k: int) -> TokenLogprob:
    """Log-softmax of the raw row, for the drawn token and the `k` most likely ones."""
    relative = raw - raw.max()
    log_total = float(np.log(np.exp(relative).sum()))
    ids = _largest(raw, k) if k > 0 else np.empty(0, np.intp)
    best = ids[np.argsort(-raw[ids], kind="stable")]
    top = [(int(i), float(relative[i]) - log_total) for i in best]
    return TokenLogprob(token_id, float(relative[token_id]) - log_total, top)
