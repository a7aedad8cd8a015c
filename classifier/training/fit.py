"""Fitting everything above the frozen encoder: linear heads, the kNN memory, and the calibrated blend."""

import numpy as np
import numpy.typing as npt

from classifier.heads import OPINIONS, Heads
from classifier.memory import Memory
from classifier.training.encoded_rows import EncodedRows
from classifier.training.logistic import fit_logistic

Float = npt.NDArray[np.float32]

# Chosen on the valid split by log loss; the optimum is flat within a factor of three.
HEAD_C = 0.005
BLEND_C = 0.03
MEMORY_ROWS = 2048


def fit_heads(rows: EncodedRows, *, seed: int, recent: int = 0) -> tuple[Heads, Memory]:
    """Heads and memory from encoded rows: rows not held train, held rows calibrate. Deterministic.

    The last `recent` rows are new experience and may fill up to half of the memory.
    """
    train, held = rows.take(~rows.held), rows.take(rows.held)
    base_rates = _base_rates(train)
    chosen = remembered(train, seed=seed, recent=int(np.count_nonzero(~rows.held[len(rows) - recent :])))
    memory = Memory.build(
        train.embedding[chosen], train.labels[chosen], train.weights[chosen], base_rates.astype(np.float32)
    )
    outcomes = rows.labels.shape[1]
    mean = train.features.mean(axis=0)
    scale = train.features.std(axis=0) + 1e-3
    width = len(mean) + train.embedding.shape[1]
    blank = np.zeros((len(OPINIONS), outcomes), np.float32)
    unfitted = Heads(
        mean, scale, np.zeros((width, outcomes), np.float32), blank[0], blank, np.zeros(outcomes, np.float32)
    )
    design = unfitted.design(train.features, train.embedding).astype(np.float64)
    coef, bias = np.zeros((width, outcomes)), np.zeros(outcomes)
    for head in range(outcomes):
        coef[:, head], bias[head] = fit_logistic(design, train.labels[:, head], train.weights, c=HEAD_C)
    blend, blend_bias = _fit_blend(held, unfitted, coef, bias, memory)
    return Heads(mean, scale, _f32(coef), _f32(bias), _f32(blend), _f32(blend_bias)), memory


def remembered(train: EncodedRows, *, seed: int, recent: int) -> npt.NDArray[np.intp]:
    """Which training rows the memory keeps, ascending: recent ones first, then rows with every outcome, then others.

    At most half goes to each of the first two kinds while a later kind has rows left.
    """
    order = np.random.default_rng(seed).permutation(len(train))
    complete = ~np.isnan(train.labels).any(axis=1)
    fresh = np.arange(len(train)) >= len(train) - recent
    kinds = [order[fresh[order]], order[(complete & ~fresh)[order]], order[(~complete & ~fresh)[order]]]
    chosen: list[npt.NDArray[np.intp]] = []
    room = min(MEMORY_ROWS, len(train))
    for i, kind in enumerate(kinds):
        later = sum(len(k) for k in kinds[i + 1 :])
        take = min(len(kind), max(room // 2, room - later))
        chosen.append(kind[:take])
        room -= take
    return np.sort(np.concatenate(chosen))


def _fit_blend(
    held: EncodedRows, heads: Heads, coef: npt.NDArray[np.float64], bias: npt.NDArray[np.float64], memory: Memory
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Weights of the opinions per head, drawn to equal shares; on rows that trained none of them, so it calibrates."""
    outcomes = len(bias)
    blend, blend_bias = np.full((len(OPINIONS), outcomes), 1 / len(OPINIONS)), np.zeros(outcomes)
    if not len(held):
        return blend, blend_bias
    features = heads.design(held.features, held.embedding) @ coef + bias
    nearby = memory.look_up(held.embedding).logits
    for head in range(outcomes):
        opinions = np.stack([features[:, head], held.word_logits[:, head], nearby[:, head]], axis=1)
        weights, shift = fit_logistic(
            opinions, held.labels[:, head], held.weights, c=BLEND_C, centre=blend[:, head].copy()
        )
        # Without any label here the fitted bias would be a made-up rate on top of the opinions.
        if not np.isnan(held.labels[:, head]).all():
            blend[:, head], blend_bias[head] = weights, shift
    return blend, blend_bias


def _base_rates(rows: EncodedRows) -> npt.NDArray[np.float64]:
    seen = ~np.isnan(rows.labels) * rows.weights[:, None]
    rates: npt.NDArray[np.float64] = (np.nansum(rows.labels * rows.weights[:, None], axis=0) + 0.5) / (
        seen.sum(axis=0) + 1.0
    )
    return rates


def _f32(values: npt.NDArray[np.float64]) -> Float:
    return values.astype(np.float32)
