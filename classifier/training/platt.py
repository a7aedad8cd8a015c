"""Platt scaling: a score becomes a probability by a logistic curve fitted on held-out rows; its ranking stays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.training.logistic import fit_logistic

Float64 = npt.NDArray[np.float64]


class Platt(NamedTuple):
    """p = 1 / (1 + exp(-(slope x (score - centre) / scale + bias))), Platt 1999."""

    centre: float
    scale: float
    slope: float
    bias: float

    @classmethod
    def fit(cls, score: Float64, y: Float64) -> "Platt":
        """On held-out scores [n] and labels [n] in [0, 1]; never turns the ranking round (slope at least 0.001)."""
        centre, scale = float(score.mean()), float(score.std()) + 1e-9
        coef, bias = fit_logistic(((score - centre) / scale)[:, None], y, np.ones(len(y)), c=10.0)
        return cls(centre, scale, max(float(coef[0]), 1e-3), bias)

    def __call__(self, score: Float64) -> Float64:
        z = self.slope * (score - self.centre) / self.scale + self.bias
        p: Float64 = 1.0 / (1.0 + np.exp(-np.clip(z, -30, 30)))
        return p


def logit(p: Float64) -> Float64:
    """log(p / (1 - p)) of probabilities kept 1e-6 from 0 and 1."""
    kept = np.clip(p, 1e-6, 1 - 1e-6)
    z: Float64 = np.log(kept / (1 - kept))
    return z
