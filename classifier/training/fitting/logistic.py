"""Logistic regression on soft, weighted labels with unobserved entries masked: the learner shared by all fits, in numpy
alone, so that an installation without extras retrains."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Loss = Callable[[Float64], tuple[float, Float64]]

# Pairs of steps and changes of the gradient that stand for the curvature, and the bounds of a fit and of a line search.
PAIRS, MOST_STEPS, MOST_HALVINGS = 10, 500, 40
# The fit ends at a gradient this small, or a relative decrease of the loss this small.
LEAST_GRADIENT, LEAST_DECREASE = 1e-5, 1e-10
# The share of the decrease promised by the slope that a step must bring (Armijo 1966).
_SUFFICIENT = 1e-4


def fit_logistic(
    x: Any,
    y: npt.NDArray[np.floating[Any]],
    weights: npt.NDArray[np.floating[Any]],
    *,
    c: float,
) -> tuple[Float64, float]:
    """Return the (coef [d], bias) that minimise `sum w * cross-entropy + |coef|^2 / (2 c)` by L-BFGS;
    deterministic.

    `x` [n, d] dense, or a sparse matrix of scipy; `y` [n] in [0, 1], NaN for unobserved outcomes (left out of the
    loss). The bias is not penalised. With no observed row, or only one kind of label, coef is 0.
    """
    seen = ~np.isnan(y) & (weights > 0)
    target, w = y[seen].astype(np.float64), weights[seen].astype(np.float64)
    rate = float(np.average(target, weights=w)) if len(target) else 0.5
    if not len(target) or rate in (0.0, 1.0):
        smooth = (rate * w.sum() + 0.5) / (w.sum() + 1.0)
        return np.zeros(x.shape[1]), float(np.log(smooth / (1 - smooth)))
    sparse = hasattr(x, "tocsr")
    rows: Any = x[seen] if sparse else np.asarray(x[seen], np.float64)
    transposed: Any = rows.T.tocsr() if sparse else rows.T

    def loss(theta: Float64) -> tuple[float, Float64]:
        coef = theta[:-1]
        z = rows @ coef + theta[-1]
        cross = np.logaddexp(0.0, z) - target * z
        residual = w * (1.0 / (1.0 + np.exp(-np.clip(z, -60, 60))) - target)
        gradient = np.append(transposed @ residual + coef / c, residual.sum())
        return float(w @ cross + coef @ coef / (2 * c)), gradient

    theta = minimise(loss, np.append(np.zeros(x.shape[1]), np.log(rate / (1 - rate))))
    return theta[:-1], float(theta[-1])


def minimise(loss: Loss, start: Float64) -> Float64:
    """Return where a convex `loss`, which gives its value and gradient [d], is least: L-BFGS (Nocedal 1980) from
    `start` [d], with steps halved until they decrease it enough."""
    at = start
    value, gradient = loss(at)
    pairs: list[tuple[Float64, Float64]] = []
    for _ in range(MOST_STEPS):
        if np.abs(gradient).max() <= LEAST_GRADIENT:
            break
        direction = -_times_inverse_curvature(gradient, pairs)
        slope = float(gradient @ direction)
        # Without curvature the first step has length 1 at most.
        size = 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(gradient)))
        for _ in range(MOST_HALVINGS):
            there = at + size * direction
            new_value, new_gradient = loss(there)
            if new_value <= value + _SUFFICIENT * size * slope:
                break
            size /= 2
        else:
            break  # no step decreases the loss by more than rounding
        step, change = there - at, new_gradient - gradient
        if step @ change > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            pairs = [*pairs[1 - PAIRS :], (step, change)]
        decrease = value - new_value
        at, value, gradient = there, new_value, new_gradient
        if decrease <= LEAST_DECREASE * max(abs(value), 1.0):
            break
    return at


def _times_inverse_curvature(gradient: Float64, pairs: list[tuple[Float64, Float64]]) -> Float64:
    """Return the inverse Hessian that `pairs` (step, change of the gradient), oldest first, stand for, times
    `gradient` [d]: the two loops of Nocedal and Wright, algorithm 7.4."""
    direction, shares = gradient.copy(), []
    for step, change in reversed(pairs):
        share = (step @ direction) / (step @ change)
        direction -= share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        direction *= (step @ change) / (change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - (change @ direction) / (step @ change)) * step
    return direction
