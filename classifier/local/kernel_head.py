"""The head of one key: Gaussian-process regression of the cells' residuals on embedding and surface features.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equations 2.25 and 5.12 (leave-one-out).
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]

# Mean squared distance per standardised feature at which the similarity of two prompts is 1/e.
_WIDTH = 0.3
# Variance of a label around its expectation, relative to the prior variance of the head.
_NOISE = 1.0


@dataclass(frozen=True)
class KernelHead:
    """float32 `embedding` [n, d] and `surface` [n, f] of the labelled prompts, and their `coefficients` [n, tiers - 1]:
    a mean of the labels' residuals weighted by similarity."""

    embedding: Float
    surface: Float
    squares: Float
    coefficients: Float

    @classmethod
    def fit(cls, embedding: Float, surface: Float, residual: Float, told: Float) -> tuple["KernelHead", Float]:
        """Fit the head on `residual` [n, tiers - 1] of labels with weights `told`; also return its leave-one-out
        prediction for each label's prompt [n, tiers - 1]."""
        alike = alikeness(embedding, surface, embedding, surface, (surface * surface).mean(axis=1)).astype(np.float64)
        coefficients, others = np.zeros(residual.shape), np.zeros(residual.shape)
        for tier in range(residual.shape[1]):
            seen = np.flatnonzero(told[:, tier] > 0)
            noisy = alike[np.ix_(seen, seen)] + np.diag(_NOISE / told[seen, tier])
            inverse = np.linalg.inv(noisy)
            found = inverse @ residual[seen, tier]
            coefficients[seen, tier] = found
            others[seen, tier] = residual[seen, tier] - found / np.diag(inverse)
        head = cls(
            embedding, surface, (surface * surface).mean(axis=1).astype(np.float32), coefficients.astype(np.float32)
        )
        return head, others.astype(np.float32)

    def times(self, share: Float) -> "KernelHead":
        """Return this head scaled by `share` [tiers - 1]."""
        return replace(self, coefficients=self.coefficients * share)

    def shift(self, embedding: Float, surface: Float) -> Float:
        """Return [..., tiers - 1]: the shift of prompts with `embedding` [..., d] and `surface` [..., f]."""
        found: Float = alikeness(embedding, surface, self.embedding, self.surface, self.squares) @ self.coefficients
        return found


def alikeness(embedding: Float, surface: Float, others: Float, surfaces: Float, squares: Float) -> Float:
    """Return [..., n] in [-0.5, 1]: the similarity of prompts to n `others`; `squares` [n] are their mean squared
    features."""
    features = surface.shape[-1]
    apart = (surface * surface).mean(axis=-1)[..., None] + squares - (2.0 / features) * (surface @ surfaces.T)
    found: Float = (embedding @ others.T + np.exp(apart / np.float32(-_WIDTH))) / np.float32(2)
    return found
