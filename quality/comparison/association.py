"""Do the labels depend on their prompts? An exact permutation test.

A classifier is worth something only if they do. If they do not, each tier's labels are exchangeable: they say how often
the tier is good, and nothing about prompts. To deal a tier's labels out at random among its prompts then changes no
distribution, so the share of deals whose statistic is at least that of the labels is a p-value (Fisher, The Design of
Experiments, 1935; with the labels as one of the deals: Phipson and Smyth 2010). It uses all labels, needs no held-out
ones, and is exact for every number of labels.

The statistic decides only how often true dependence is seen. It is the log likelihood of the residuals r, labels less
their tier's rate, in a Gaussian model of dependence (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, equation 2.30; the likelihood ratio is most powerful by Neyman and Pearson 1933):

    r ~ N(a h, D + (a / 2)^2 h h' + s^2 (L + K))

h is what the prior says of the prompt, less its mean over the tier's labels. D is diagonal: the tier's variance over
the label's weight. L is linear in the embedding, the features and the classes. K is near 1 for prompts of nearly equal
embeddings only, since kinds of prompts may differ along a line or in clusters.

A retraining repeats the test whenever there are more labels. Look j is held to a level of `TOTAL_LEVEL` / (j (j + 1)).
These sum to `TOTAL_LEVEL`, so that labels which say nothing about prompts pass at any look with at most this
probability.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.local.cells import Labels
from classifier.model.learned import inputs

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]

TOTAL_LEVEL = 0.02
DEALS = 9_999
# a and s above, and the distance of directions at which K has fallen to 1 / sqrt(e). Chosen on draws of two ladders.
SLOPE, _SPREAD, _WIDTH = 0.5, 0.1, 0.3
# The newest labels are tested, at most so many: the time is quadratic in them.
_MOST_LABELS = 2_000
_AT_ONCE = 500


class Association(NamedTuple):
    """Whether labels depend on their prompts."""

    p: float
    """Probability of labels that look at least as dependent if they are not; 1 where no tier has two labels."""
    level: float
    """Up to this p they are taken to depend on them."""

    @property
    def is_shown(self) -> bool:
        return self.p <= self.level


def level_of(look: int) -> float:
    """Return the level of the `look`-th test, from 1 on."""
    return TOTAL_LEVEL / (look * (look + 1))


def association(
    labels: Labels, prior: Float, most_of_tenant: int, *, look: int, seed: int = 0, deals: int = DEALS
) -> Association:
    """Test `labels` over `prior` [4, tiers - 1]. Of each tenant the newest `most_of_tenant` labels of a tier count.
    Deterministic in `seed`."""
    row, tier = _observed(labels, most_of_tenant)
    residual, variance = np.zeros(len(row)), np.ones(len(row))
    shape = np.clip(labels.classes @ prior, 0.0, 1.0)[row, tier].astype(np.float64)
    scores, weight = labels.scores[row, tier].astype(np.float64), labels.told[row, tier].astype(np.float64)
    for number in np.unique(tier):
        mine = tier == number
        residual[mine] = scores[mine] - scores[mine].mean()
        shape[mine] -= shape[mine].mean()
        variance[mine] = max(float(np.square(residual[mine]).mean()), 0.01)
    if not np.abs(residual).max(initial=0.0) > 0:
        return Association(1.0, level_of(look))
    kernel = _linear(labels, row) + _clusters(labels.embedding[row])
    covariance = np.diag(variance / weight) + (SLOPE / 2) ** 2 * np.outer(shape, shape) + _SPREAD**2 * kernel
    precision: Float64 = np.linalg.inv(covariance).astype(np.float64, copy=False)
    expected = SLOPE * shape
    known = _likelihood(residual[:, None], expected, precision)[0]
    rng, as_likely = np.random.default_rng(seed), 0
    for start in range(0, deals, _AT_ONCE):
        dealt = _dealt(residual, tier, min(_AT_ONCE, deals - start), rng)
        as_likely += int(np.count_nonzero(_likelihood(dealt, expected, precision) >= known - 1e-9))
    return Association((1 + as_likely) / (1 + deals), level_of(look))


def _observed(labels: Labels, most_of_tenant: int) -> tuple[Numbers, Numbers]:
    """Return the row and the tier [m] of the newest labels."""
    row, tier = (places[::-1] for places in np.nonzero(labels.told > 0))
    counts = np.ones(len(row), np.bool_)
    for one, number in {*zip(labels.tenant[row].tolist(), tier.tolist(), strict=True)}:
        if one >= 0:
            counts[np.flatnonzero((labels.tenant[row] == one) & (tier == number))[most_of_tenant:]] = False
    return row[counts][:_MOST_LABELS], tier[counts][:_MOST_LABELS]


def _linear(labels: Labels, row: Numbers) -> Float64:
    """Return the kernel [m, m] that is linear in the inputs of heads: classes, embedding and features, each of
    mean 1 on its diagonal."""
    classes, dim = labels.classes.shape[1], labels.embedding.shape[1]
    together = inputs(labels.classes[row], labels.embedding[row], labels.surface[row]).astype(np.float64)
    parts = np.split(together, [classes, classes + dim], axis=1)
    kernel: Float64 = np.zeros((len(row), len(row)))
    for part in parts:
        centred = _centred(part)
        kernel += centred @ centred.T / len(parts)
    return kernel


def _centred(values: Float64) -> Float64:
    """Return `values` [m, k] less their mean, of a mean squared length of 1."""
    centred: Float64 = values - values.mean(axis=0)
    return centred / max(float(np.sqrt(np.square(centred).sum(axis=1).mean())), 1e-9)


def _clusters(embedding: Float) -> Float64:
    """Return the kernel [m, m] of Gaussian similarity of directions."""
    unit = embedding.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-9)
    similarity: Float64 = np.exp((unit @ unit.T - 1) / _WIDTH**2)
    return similarity


def _likelihood(residual: Float64, expected: Float64, precision: Float64) -> Float64:
    """Return the log likelihood [k] of each column of `residual` [m, k], but for a constant."""
    off = residual - expected[:, None]
    likelihood: Float64 = -0.5 * (off * (precision @ off)).sum(axis=0)
    return likelihood


def _dealt(residual: Float64, tier: Numbers, deals: int, rng: np.random.Generator) -> Float64:
    """Return `residual` dealt out at random within each tier, [m, deals]."""
    dealt = np.repeat(residual[:, None], deals, axis=1)
    for number in np.unique(tier):
        mine = tier == number
        dealt[mine] = rng.permuted(dealt[mine], axis=0)
    return dealt
