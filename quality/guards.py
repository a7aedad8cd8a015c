"""What a candidate may not do however well it scores on all prompts together: ruin one kind of them."""

from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.clusters import Clusters
from classifier.training.estimates import MIN_ROWS

Float = npt.NDArray[np.floating]

# By how much a kind of prompts may lose for sure; and with which probability any of them is wrongly found to.
CLUSTER_TOLERANCE, CLUSTER_LEVEL = 0.01, 0.05


class ClusterGain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean gain on the rows of one kind of prompts; `high` is its upper bound, at a level for all kinds
    together."""

    cluster: int
    rows: int
    gain: float
    high: float


def cluster_gains(clusters: Clusters, embedding: Float, difference: Float) -> list[ClusterGain]:
    """Gains by cluster, the worst first, of rows with `embedding` [n, dim] and paired `difference` [n].

    Clusters of fewer than `MIN_ROWS` rows say nothing. Bounds hold for all of them together (Bonferroni).
    """
    if not len(embedding):
        return []
    nearest = clusters.nearest(embedding.astype(np.float32))
    numbers = [int(k) for k in np.unique(nearest) if np.count_nonzero(nearest == k) >= MIN_ROWS]
    if not numbers:
        return []
    z = NormalDist().inv_cdf(1.0 - CLUSTER_LEVEL / len(numbers))
    found = []
    for number in numbers:
        mine = difference[nearest == number]
        mean, error = float(mine.mean()), float(mine.std(ddof=1)) / len(mine) ** 0.5
        found.append(ClusterGain(cluster=number, rows=len(mine), gain=round(mean, 6), high=round(mean + z * error, 6)))
    return sorted(found, key=lambda one: one.high)


def cluster_reasons(gains: Sequence[ClusterGain]) -> list[str]:
    """The clusters that certainly lose."""
    return [
        f"loses on the {one.rows} rows of cluster {one.cluster}: {one.gain:+.4f}, at most {one.high:+.4f}"
        for one in gains
        if one.high < -CLUSTER_TOLERANCE
    ]
