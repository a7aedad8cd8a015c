"""The ordinal head: one score of a prompt's ease, an ascending threshold per tier (McCullagh 1980: proportional odds).

It forces what is no worse for a cheap tier to be so for a dearer one, which independent heads do not (DESIGN §4).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from classifier.training.logistic import fit_logistic

Float64 = npt.NDArray[np.float64]

# Thresholds enter as columns of this height, so that the penalty on coefficients hardly touches them.
_HEIGHT = 100.0


def ordinal_groups(heads: int) -> list[npt.NDArray[np.intp]]:
    """The heads that share a score: `no_worse` of the tiers below the strongest, `correct` of all tiers."""
    weaker = heads // 2
    return [np.arange(weaker), np.arange(weaker, heads)]


def fit_tied(
    x: Float64, y: npt.NDArray[np.floating[Any]], weights: npt.NDArray[np.floating[Any]], *, c: float, centre: Float64
) -> tuple[Float64, Float64]:
    """(coef [d, h], equal columns; bias [h], ascending) for outcomes `y` [n, h] of tiers in ascending order, NaN where
    not observed; the loss and the penalty are those of `fit_logistic`, over all outcomes together."""
    rows, tiers = y.shape
    thresholds = np.kron(np.eye(tiers) * _HEIGHT, np.ones((rows, 1)))
    stacked = np.hstack([np.tile(x, (tiers, 1)), thresholds])
    seen = ~np.isnan(y.T.ravel())
    prior = np.concatenate([centre, np.zeros(tiers)])
    fitted, bias = fit_logistic(stacked[seen], y.T.ravel()[seen], np.tile(weights, tiers)[seen], c=c, centre=prior)
    ascending = np.maximum.accumulate(fitted[len(centre) :] * _HEIGHT + bias)
    return np.repeat(fitted[: len(centre), None], tiers, axis=1), ascending
