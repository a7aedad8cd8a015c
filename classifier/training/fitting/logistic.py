"""Logistic regression on soft, weighted labels with unobserved entries masked: the learner shared by all fits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import minimize

Float64 = npt.NDArray[np.float64]


def fit_logistic(
    x: Any,
    y: npt.NDArray[np.floating[Any]],
    weights: npt.NDArray[np.floating[Any]],
    *,
    c: float,
    centre: Float64 | None = None,
) -> tuple[Float64, float]:
    """Return the (coef [d], bias) that minimise `sum w * cross-entropy + |coef - centre|^2 / (2 c)` by L-BFGS;
    deterministic.

    `x` [n, d] dense or sparse; `y` [n] in [0, 1], NaN for unobserved outcomes (left out of the loss). The bias is not
    penalised. With no observed row, or only one kind of label, coef is `centre` (default 0).
    """
    seen = ~np.isnan(y) & (weights > 0)
    dims = x.shape[1]
    prior = np.zeros(dims) if centre is None else centre
    target, w = y[seen].astype(np.float64), weights[seen].astype(np.float64)
    rate = float(np.average(target, weights=w)) if len(target) else 0.5
    if not len(target) or rate in (0.0, 1.0):
        smooth = (rate * w.sum() + 0.5) / (w.sum() + 1.0)
        return prior.copy(), float(np.log(smooth / (1 - smooth)))
    rows: Any = x[seen] if sp.issparse(x) else np.asarray(x[seen], np.float64)
    transposed: Any = rows.T.tocsr() if sp.issparse(x) else rows.T

    def loss(theta: Float64) -> tuple[float, Float64]:
        shift = theta[:-1] - prior
        z = rows @ theta[:-1] + theta[-1]
        cross = np.logaddexp(0.0, z) - target * z
        residual = w * (1.0 / (1.0 + np.exp(-np.clip(z, -60, 60))) - target)
        gradient = np.append(transposed @ residual + shift / c, residual.sum())
        return float(w @ cross + shift @ shift / (2 * c)), gradient

    start = np.append(prior, np.log(rate / (1 - rate)) if centre is None else 0.0)
    theta = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-9}).x
    return theta[:-1], float(theta[-1])
