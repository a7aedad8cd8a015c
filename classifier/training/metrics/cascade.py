"""Two tiers in a cascade: what answers cost and how many are right, at every share of prompts that go on to the dearer.

Who chooses by the prompt pays for one answer; who has seen answers pays for those too.
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
# Of the dearer tier's accuracy, what a cascade has to reach.
PARITY = 0.95


class Pair(NamedTuple):
    """A cheaper and a dearer tier on the same n prompts: whether each is right, and what each costs, US dollars [n]."""

    weak_right: Floats
    strong_right: Floats
    weak_cost: Floats
    strong_cost: Floats


class Way(NamedTuple):
    """A way to choose: how much it expects the dearer tier to be better [n], and how many answers of the cheaper one it
    has read by then [n]."""

    gain: Floats
    samples: Floats


class CascadePoint(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the prompts answered by the dearer tier; mean US dollars per prompt, and accuracy."""

    share: float
    cost_usd: float
    accuracy: float


class CascadeCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One way to choose, with 95% bootstrap intervals.

    `mean_accuracy`: over budgets from the cheaper tier alone to the dearer alone, evenly; `gain`: that of this way less
    that of the prompt-only one, paired. `parity_cost`: the least mean cost, relative to the dearer tier alone, at which
    `PARITY` of the dearer tier's accuracy is reached; `parity_gain`: the prompt-only one's less this one's, paired.
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
    """Two tiers' aligned outcomes at prices in US dollars per million tokens (input, output)."""
    return Pair(
        weak.correct.astype(np.float64),
        strong.correct.astype(np.float64),
        (weak.prompt_tokens * weak_price[0] + weak.answer_tokens * weak_price[1]) / 1e6,
        (strong.prompt_tokens * strong_price[0] + strong.answer_tokens * strong_price[1]) / 1e6,
    )


def cascade_curves(pair: Pair, ways: dict[str, Way], reference: str, seed: int) -> list[CascadeCurve]:
    """A curve for each of `ways`, by name."""
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
    """Mean cost and accuracy [b, n + 1] as one prompt after another, greatest gain first, goes on to the dearer."""
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
    """Mean accuracy over budgets, and cost at parity as a share of the dearer tier's, [b] each."""
    cost, accuracy = _walk(pair, way, weights)
    total = weights.sum(axis=1)
    alone = weights @ pair.strong_cost / total
    wanted = PARITY * (weights @ pair.strong_right) / total
    budgets = np.linspace(0.0, 1.0, POINTS)
    means, parities = np.empty(len(weights)), np.empty(len(weights))
    for b in range(len(weights)):
        grid = cost[b, 0] + budgets * max(alone[b] - cost[b, 0], 0.0)
        # Costs need not rise evenly, but they never fall along the walk by more than rounding.
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
