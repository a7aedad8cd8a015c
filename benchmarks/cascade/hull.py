"""Lotteries: the best quality of a mixture of fixed ways to answer at a cost, and the least cost at a quality."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


def best_quality(costs: Sequence[float], qualities: Float, at: Float) -> Float:
    """Return the best quality [n] at each mean cost `at` [n] of a mixture of ways with `costs` [k] and `qualities`
    [n, k]. A mixture may cost less than `at`; there must be a way that does."""
    order = np.argsort(costs, kind="stable")
    prices, values = np.asarray(costs, np.float64)[order], qualities[:, order]
    best = np.full(len(at), -np.inf)
    for i, price in enumerate(prices):
        best = np.where(price <= at + 1e-12, np.maximum(best, values[:, i]), best)
        for j in range(i + 1, len(prices)):
            if prices[j] > price:
                share = (at - price) / (prices[j] - price)
                mixed = values[:, i] + share * (values[:, j] - values[:, i])
                best = np.where((share >= 0) & (share <= 1), np.maximum(best, mixed), best)
    return best


def least_cost(ways: Sequence[tuple[float, float]], quality: float) -> float:
    """Return the least mean cost of a mixture of `ways`, (cost, quality) each, that reaches `quality`; infinite if none
    does."""
    least = min((cost for cost, value in ways if value >= quality), default=np.inf)
    for low_cost, low in ways:
        for high_cost, high in ways:
            if low < quality < high:
                least = min(least, low_cost + (quality - low) / (high - low) * (high_cost - low_cost))
    return float(least)
