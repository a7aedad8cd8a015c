"""Lotteries: the least cost of a mixture of fixed ways to answer at a quality, and the best one of each group."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


def least_cost(ways: Sequence[tuple[float, float]], quality: float) -> float:
    """Return the least mean cost of a mixture of `ways`, (cost, quality) each, that reaches `quality`; infinite if none
    does."""
    least = min((cost for cost, value in ways if value >= quality), default=np.inf)
    for low_cost, low in ways:
        for high_cost, high in ways:
            if low < quality < high:
                least = min(least, low_cost + (quality - low) / (high - low) * (high_cost - low_cost))
    return float(least)


def best_by_group(costs: Sequence[float], qualities: Float, weights: Float, at: float) -> float:
    """Return the best mean quality at mean cost `at` of mixtures of ways with `costs` [k], a mixture for each of g
    groups, by `qualities` [g, k] and the groups' shares `weights` [g], which add up to 1.

    Every group begins with its cheapest way; steps along the groups' hulls are taken from the steepest on.
    """
    steps: list[tuple[float, float]] = []
    spent = reached = 0.0
    for values, weight in zip(qualities, weights, strict=True):
        hull = _hull(costs, values)
        spent, reached = spent + weight * hull[0][0], reached + weight * hull[0][1]
        for (low_cost, low), (high_cost, high) in pairwise(hull):
            steps.append(((high - low) / (high_cost - low_cost), weight * (high_cost - low_cost)))
    for slope, price in sorted(steps, reverse=True):
        paid = min(price, at - spent)
        if paid <= 0:
            break
        spent, reached = spent + paid, reached + slope * paid
    return reached


def _hull(costs: Sequence[float], values: Float) -> list[tuple[float, float]]:
    """Return the rising part of the upper hull of the points, from the cheapest one on."""
    hull: list[tuple[float, float]] = []
    for cost, value in sorted(zip(costs, values.tolist(), strict=True), key=lambda way: (way[0], -way[1])):
        if hull and value <= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (cost, value)):
            hull.pop()
        hull.append((cost, value))
    return hull


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
