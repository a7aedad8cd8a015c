"""Cascades of two tiers: cost and accuracy at every share of prompts that go to the more expensive tier.

A choice by the prompt alone pays for one answer; a choice after seeing answers pays for those too.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training.data.outcome_folder import Outcomes
from classifier.training.metrics.metrics import interval, resamples

Floats = npt.NDArray[np.floating]

POINTS = 21
TIMES = 1000
# Share of the dearer tier's accuracy that a cascade has to reach.
PARITY = 0.95


class Pair(NamedTuple):
    """A cheaper and a dearer tier on the same n prompts: whether each is right, and the cost of each, US dollars
    [n]."""

    weak_right: Floats
    strong_right: Floats
    weak_cost: Floats
    strong_cost: Floats


class Way(NamedTuple):
    """A way to choose: the expected advantage of the dearer tier [n], and the number of the cheaper tier's answers that
    it has read [n]."""

    gain: Floats
    samples: Floats


class CascadePoint(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the prompts answered by the dearer tier; mean US dollars per prompt, and accuracy."""

    share: float
    cost_usd: float
    accuracy: float


class CascadeCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One way to choose, with 95% bootstrap intervals.

    `mean_accuracy`: over budgets from the cheaper tier alone to the dearer alone, evenly; `gain`: this way's minus the
    prompt-only way's, paired. `parity_cost`: the least mean cost, relative to the dearer tier alone, that reaches
    `PARITY` of the dearer tier's accuracy; `parity_gain`: the prompt-only way's minus this one's, paired.
    """

    name: str
    points: list[CascadePoint]
    mean_accuracy: float
    mean_accuracy_interval: tuple[float, float]
    gain: float
    gain_interval: tuple[float, float]
    parity_cost: float
    parity_cost_interval: tuple[float, float]
    parity_gain: float
    parity_gain_interval: tuple[float, float]


def pair_of(
    weak: Outcomes, strong: Outcomes, weak_price: tuple[float, float], strong_price: tuple[float, float]
) -> Pair:
    """Build a pair from two tiers' aligned outcomes at prices in US dollars per million tokens (input, output)."""
    return Pair(
        weak.correct.astype(np.float64),
        strong.correct.astype(np.float64),
        (weak.prompt_tokens * weak_price[0] + weak.answer_tokens * weak_price[1]) / 1e6,
        (strong.prompt_tokens * strong_price[0] + strong.answer_tokens * strong_price[1]) / 1e6,
    )


def cascade_curves(pair: Pair, ways: dict[str, Way], reference: str, seed: int) -> list[CascadeCurve]:
    """Return a curve for each of `ways`, by name."""
    n = len(pair.weak_right)
    weights = np.concatenate([np.ones((1, n)), resamples(n, TIMES, seed)])
    measured = {name: _measure(pair, way, weights) for name, way in ways.items()}
    means, parities = measured[reference]
    curves = []
    for name, way in ways.items():
        mean, parity = measured[name]
        curves.append(
            CascadeCurve(
                name=name,
                points=_points(pair, way),
                mean_accuracy=float(mean[0]),
                mean_accuracy_interval=interval(mean[1:]),
                gain=float(mean[0] - means[0]),
                gain_interval=interval((mean - means)[1:]),
                parity_cost=float(parity[0]),
                parity_cost_interval=interval(parity[1:]),
                parity_gain=float(parities[0] - parity[0]),
                parity_gain_interval=interval((parities - parity)[1:]),
            )
        )
    return curves


def _walk(pair: Pair, way: Way, weights: Floats) -> tuple[Floats, Floats]:
    """Return mean cost and accuracy [b, n + 1] as prompts move to the dearer tier one by one, greatest gain first."""
    order = np.argsort(-way.gain, kind="stable")
    w = weights[:, order]
    right = pair.strong_right[order] - pair.weak_right[order]
    kept = (pair.weak_cost * np.maximum(way.samples, 1))[order]
    dearer = (pair.strong_cost + pair.weak_cost * way.samples)[order] - kept
    total = w.sum(axis=1, keepdims=True)
    start = np.zeros((len(w), 1))
    cost = np.concatenate([start, np.cumsum(w * dearer, axis=1)], axis=1) + (w @ kept)[:, None]
    accuracy = np.concatenate([start, np.cumsum(w * right, axis=1)], axis=1) + (w @ pair.weak_right[order])[:, None]
    return cost / total, accuracy / total


def _measure(pair: Pair, way: Way, weights: Floats) -> tuple[Floats, Floats]:
    """Return the mean accuracy over budgets, and the cost at parity as a share of the dearer tier's, [b] each."""
    cost, accuracy = _walk(pair, way, weights)
    total = weights.sum(axis=1)
    alone = weights @ pair.strong_cost / total
    wanted = PARITY * (weights @ pair.strong_right) / total
    budgets = np.linspace(0.0, 1.0, POINTS)
    means, parities = np.empty(len(weights)), np.empty(len(weights))
    for b in range(len(weights)):
        grid = cost[b, 0] + budgets * max(alone[b] - cost[b, 0], 0.0)
        # Costs need not rise evenly, but they never fall by more than rounding.
        at = np.clip(np.searchsorted(np.maximum.accumulate(cost[b]), grid + 1e-15, side="right") - 1, 0, None)
        means[b] = accuracy[b, at].mean()
        reached = np.flatnonzero(accuracy[b] >= wanted[b] - 1e-12)
        parities[b] = (cost[b, reached].min() if len(reached) else cost[b, -1]) / max(alone[b], 1e-15)
    return means, parities


def _points(pair: Pair, way: Way) -> list[CascadePoint]:
    n = len(way.gain)
    cost, accuracy = _walk(pair, way, np.ones((1, n)))
    places = np.unique(np.round(np.linspace(0, n, POINTS)).astype(int))
    return [
        CascadePoint(share=float(i / n), cost_usd=float(cost[0, i]), accuracy=float(accuracy[0, i])) for i in places
    ]
