"""From a matrix of features to the probability of one outcome: the three learners of the baselines."""

import warnings
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

Float64 = npt.NDArray[np.float64]
DENSE_PENALTIES, SPARSE_PENALTIES = (0.0003, 0.003, 0.03, 0.3), (0.3, 1.0, 3.0)
NEIGHBOURS, SHARPNESS = 64, 10.0
_BATCH = 500


class Fitted(Protocol):
    """A fitted learner."""

    def __call__(self, x: Any, /) -> Float64:
        """P(outcome) [rows] for features [rows, width]."""


class Learner(Protocol):
    """`x` [n, width] and `y` [n] of 0 and 1 to fit, `x_valid` and `y_valid` to choose a penalty with."""

    def __call__(self, x: Any, y: Float64, x_valid: Any, y_valid: Float64) -> Fitted:
        """The fitted learner."""


def logistic(x: Any, y: Float64, x_valid: Any, y_valid: Float64) -> Fitted:
    """Logistic regression, its penalty chosen by log loss on the valid rows."""
    best: tuple[float, Any] | None = None
    for c in SPARSE_PENALTIES if issparse(x) else DENSE_PENALTIES:
        model = LogisticRegression(C=c, max_iter=300, solver="liblinear" if issparse(x) else "lbfgs").fit(x, y)
        p = np.clip(model.predict_proba(x_valid)[:, 1], 1e-6, 1 - 1e-6)
        loss = float(-(y_valid * np.log(p) + (1 - y_valid) * np.log(1 - p)).mean())
        if best is None or loss < best[0]:
            best = loss, model
        elif loss > best[0] * 1.02:
            break
    assert best is not None
    return _probability(best[1])


def mlp(x: Any, y: Float64, x_valid: Any, y_valid: Float64) -> Fitted:
    """One hidden layer of 64, early stopping on a tenth of the training rows."""
    network = MLPClassifier((64,), alpha=1.0, early_stopping=True, max_iter=60, learning_rate_init=5e-4, random_state=0)
    with warnings.catch_warnings():
        # Sixty rounds are what the row is; whether they were enough is for the table to say.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return _probability(network.fit(x, y))


def _probability(model: Any) -> Fitted:
    def predict(x: Any) -> Float64:
        p: Float64 = model.predict_proba(x)[:, 1]
        return p

    return predict


def neighbours(x: Any, y: Float64, x_valid: Any, y_valid: Float64) -> Fitted:
    """Mean outcome of the 64 nearest training rows by cosine, weighted exp(10 x cosine)."""
    known = _unit(x)
    k = min(NEIGHBOURS, len(known))

    def predict(wanted: Any) -> Float64:
        parts = []
        unit = _unit(wanted)
        for start in range(0, len(unit), _BATCH):
            cosine = unit[start : start + _BATCH] @ known.T
            nearest = np.argpartition(cosine, len(known) - k, axis=1)[:, len(known) - k :]
            weight = np.exp(SHARPNESS * np.take_along_axis(cosine, nearest, 1))
            parts.append((weight * y[nearest]).sum(axis=1) / weight.sum(axis=1))
        return np.concatenate(parts) if parts else np.zeros(0)

    return predict


def _unit(x: Any) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = (x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-9)).astype(np.float32)
    return rows
