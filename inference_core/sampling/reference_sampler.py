"""The NumPy sampler: the oracle of the native sampler, and its replacement on other platforms.

Every filter keeps a prefix of a total order (greater first, then smaller token id), so ties are deterministic. A
token's weight is exp((logit - best) / temperature) as an integer count of 2**-44, so sums of weights are exact in any
order: thread counts, vector widths and NumPy versions cannot change a draw. A weight below half a count (a
probability below 2**-45 of the best token's) is never drawn. The draw is counter-based: one uniform
number per (seed, position), no generator state to save when a sequence is preempted.
"""

import math
import sys
from collections import Counter
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from inference_core.errors import BadLogitsError, InvalidRequestError
from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.step_plan import SampledToken, SampleSpec

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]
Ids = npt.NDArray[np.intp]

ONE = 1 << 44  # the weight of the best token
MAX_VOCABULARY = (1 << 19) - 1  # so that the sum of all weights fits 63 bits
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
STEPS_PER_NAT = 23.083120654223414  # 16 / ln 2
_LOWEST = float(np.finfo(np.float32).min)
_CHUNK = 4096  # temporaries of this many elements stay in a core's own cache
_ROUNDING = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer
_UNIT = 4503599627370496.0  # 2**52, whose unit in the last place is one
_UNIT_BITS = 0x4330000000000000
# (ln 2 / 16)**k / k! for k = 5, 4, … 1, and 2**(j / 16).
WEIGHT_TAYLOR = (
    1.2715871950558131e-09,
    1.467610032291943e-07,
    1.3550807779497457e-05,
    0.0009383847928089872,
    0.04332169878499658,
)
_POWERS = np.array(
    [
        1.0, 1.0442737824274138, 1.0905077326652577, 1.1387886347566916,
        1.189207115002721, 1.241857812073484, 1.2968395546510096, 1.3542555469368927,
        1.4142135623730951, 1.4768261459394993, 1.5422108254079407, 1.6104903319492543,
        1.681792830507429, 1.7562521603732995, 1.8340080864093424, 1.9152065613971474,
    ]
)  # fmt: skip
# What a weight is made from, wherever it is computed: bits of 2**(44 + j/16), less j where adding n << 48 puts it.
WEIGHT_POWERS = _POWERS.view(np.int64) + (44 << 52) - (np.arange(16) << 48)
# A nucleus rarely reaches down to tokens this unlikely relative to the best one, and sorting the few
# tokens above costs microseconds, sorting a whole vocabulary half a millisecond.
_NEAR = ONE >> 10


def sample_row(raw: Logits, spec: SampleSpec) -> SampledToken | None:
    """Draw from one row of raw logits [V]; None where it holds NaN or +inf, or no token is left to draw.

    Raises `InvalidRequestError` for a biased, stop or earlier token id outside the vocabulary.
    """
    params = spec.params
    if not np.isfinite(raw.max()):
        return None
    row = _adjusted(raw, spec)
    best = int(row.argmax())
    if not np.isfinite(row[best]):
        return None
    token_id = best
    if params.temperature > 0:
        ids, weights = _filtered(row, params)
        token_id = _draw(ids, weights, point(spec.seed, spec.position))
    if params.logprobs is None:
        return SampledToken(token_id)
    return SampledToken(token_id, token_logprob(raw, token_id, params.logprobs))


def distribution(raw: Logits, spec: SampleSpec) -> Floats:
    """The law [V] that `sample_row` draws from; greedy puts all mass on the best token.

    Raises `BadLogitsError` where no token can be drawn.
    """
    row = _adjusted(raw, spec)
    if not (np.isfinite(raw.max()) and np.isfinite(row.max())):
        raise BadLogitsError([0], len(row))
    law = np.zeros(len(row))
    if spec.params.temperature == 0:
        law[row.argmax()] = 1.0
    else:
        ids, weights = _filtered(row, spec.params)
        law[slice(None) if ids is None else ids] = weights / weights.sum()
    return law


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a pure function of (seed, position)."""
    return point(seed, position) * 2.0**-53


def point(seed: int, position: int) -> int:
    """The 53 bits of `uniform`.

    Element `position` of the SplitMix64 stream that starts at the mixed seed (Steele, Lea, Flood,
    "Fast splittable pseudorandom number generators", 2014); any integer is a seed, taken modulo 2**64.
    """
    start = _mix(seed & _MASK)
    return _mix((start + (position + 1) * _GOLDEN) & _MASK) >> 11


def _mix(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _adjusted(raw: Logits, spec: SampleSpec) -> Logits:
    """The row with bias, penalties and the minimum-length mask applied, in this order; a copy if any applies.

    Repetition as in Keskar et al., "CTRL", 2019, over prompt and output; presence and frequency as in OpenAI's
    API reference, over the output alone.
    """
    params, row, vocab = spec.params, raw, len(raw)
    if params.logit_bias:
        row, ids = row.copy(), _token_ids(params.logit_bias, vocab, "logit_bias")
        row[ids] += np.fromiter(params.logit_bias.values(), np.float32, len(ids))
    if params.repetition_penalty != 1.0:
        prompt = _token_ids(spec.prompt_token_ids, vocab, "prompt_token_ids")
        output = _token_ids(spec.output_token_ids, vocab, "output_token_ids")
        row, ids = row.copy(), np.union1d(prompt, output)
        scores, penalty = row[ids], np.float32(params.repetition_penalty)
        with np.errstate(over="ignore"):
            row[ids] = np.where(scores < 0, scores * penalty, scores / penalty)
    if (params.presence_penalty or params.frequency_penalty) and spec.output_token_ids:
        counts = Counter(spec.output_token_ids)
        row, ids = row.copy(), _token_ids(counts, vocab, "output_token_ids")
        times = np.fromiter(counts.values(), np.float32, len(counts))
        row[ids] -= params.presence_penalty + params.frequency_penalty * times
    if spec.position < params.min_tokens:
        row = row.copy()
        row[_token_ids(spec.eos_token_ids, vocab, "eos_token_ids")] = -np.inf
        row[_token_ids(params.stop_token_ids, vocab, "stop_token_ids")] = -np.inf
    return row


def _token_ids(ids: Collection[int], vocab: int, param: str) -> Ids:
    for token_id in ids:
        if not 0 <= token_id < vocab:
            raise InvalidRequestError(
                f"token id {token_id} in {param} is not in the vocabulary (0..{vocab - 1})", param
            )
    return np.fromiter(ids, np.intp, len(ids))


def weights_of(logits: Logits, temperature: float) -> Weights:
    """round(2**44 * exp((logit - best) / temperature)) to a relative error of 1.5e-13, in exactly these operations.

    The native kernels repeat them one by one (`native/sampling_kernels.h` explains them): additions, multiplications
    and roundings of IEEE 754, which are the same on every machine, as a library's `exp` is not.
    """
    scale, best = min(STEPS_PER_NAT / temperature, sys.float_info.max), float(logits.max())
    # What lies 46 octaves below the best weighs nothing.
    near = logits >= max(best - 16.0 * 46.0 / scale, _LOWEST)
    if np.count_nonzero(near) < len(near) // 2:
        weights = np.zeros(len(logits), np.int64)
        weights[near] = _weigh(logits[near], best, scale)
        return weights
    chunks = (logits[first : first + _CHUNK] for first in range(0, len(logits), _CHUNK))
    return np.concatenate([_weigh(chunk, best, scale) for chunk in chunks])


def _weigh(logits: Logits, best: float, scale: float) -> Weights:
    steps = logits.astype(np.float64)
    steps -= best
    with np.errstate(over="ignore"):
        steps *= scale
    np.maximum(steps, -960.0, out=steps)
    shifted = steps + _ROUNDING
    n = shifted.view(np.int64)  # holds 16 times the power of two in its low bits
    scaled = (WEIGHT_POWERS.take(n & 15) + (n << 48)).view(np.float64)
    shifted -= _ROUNDING
    steps -= shifted
    power = steps * WEIGHT_TAYLOR[0]
    for coefficient in WEIGHT_TAYLOR[1:]:
        power += coefficient
        power *= steps
    power += 1.0
    power *= scaled
    power += _UNIT
    return power.view(np.int64) - _UNIT_BITS


def _filtered(row: Logits, params: SamplingParams) -> tuple[Ids | None, Weights]:
    """Token ids, ascending, that survive top-k, top-p and min-p, with their weights. None: the whole vocabulary."""
    if len(row) > MAX_VOCABULARY:
        raise ValueError(f"cannot sample from a vocabulary of {len(row)} tokens; 1 to {MAX_VOCABULARY} are possible")
    ids = _largest(row, params.top_k) if 0 < params.top_k < len(row) else None
    weights = weights_of(row if ids is None else row[ids], params.temperature)
    if params.top_p < 1:
        total = int(weights.sum())
        kept = _nucleus(weights, min(max(math.ceil(params.top_p * float(total)), 1), total))
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= math.ceil(min(params.min_p, 1.0) * ONE))
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    return ids, weights


def _nucleus(weights: Weights, mass: int) -> Ids:
    """Indices, ascending, of the fewest best weights that reach `mass` (Holtzman et al. 2020)."""
    near = np.flatnonzero(weights >= _NEAR)
    if int(weights[near].sum()) < mass:
        near = np.arange(len(weights))
    ordered = np.sort(weights[near])[::-1]
    count = int(np.searchsorted(np.cumsum(ordered), mass)) + 1
    return near if count >= len(near) else near[_largest(weights[near], count)]


def _largest(values: Logits | Weights, k: int) -> Ids:
    """Indices, ascending, of the `k` largest values; of equal ones the first."""
    if k >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - k)[len(values) - k]
    near = np.flatnonzero(values >= least)
    if len(near) == k:
        return near
    ties = np.flatnonzero(values[near] == least)
    return np.delete(near, ties[k - len(near) :])


def _draw(ids: Ids | None, weights: Weights, bits: int) -> int:
    """Invert the cumulative distribution at `bits` / 2**53; a token of weight 0 is never drawn."""
    reached = np.cumsum(weights)
    index = int(np.searchsorted(reached, bits * int(reached[-1]) >> 53, side="right"))
    return index if ids is None else int(ids[index])


def token_logprob(raw: Logits, token_id: int, k: int) -> TokenLogprob:
    """Log-softmax of the raw row, for the drawn token and the `k` most likely ones."""
    best = float(raw.max())
    log_total = math.log(int(weights_of(raw, 1.0).sum()) / ONE)
    ids = _largest(raw, k) if k > 0 else np.empty(0, np.intp)
    listed = ids[np.argsort(-raw[ids], kind="stable")]
    top = [(int(i), float(raw[i]) - best - log_total) for i in listed]
    return TokenLogprob(token_id, float(raw[token_id]) - best - log_total, top)
