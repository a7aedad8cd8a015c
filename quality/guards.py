"""What a candidate may not do however well it scores: cost much more, ruin one kind of prompts, decide slowly."""

from collections.abc import Sequence
from statistics import NormalDist, median
from time import thread_time

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.clusters import Clusters
from classifier.outcome_model import EncodedTurn, OutcomeModel
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.estimates import MIN_ROWS, RESAMPLES, Estimate, estimate

Float = npt.NDArray[np.floating]

# By how much choices may become dearer without a gain that pays for it.
COST_TOLERANCE = 0.10
# How much utility may certainly be lost on the base data: less is hardly felt, and newer rows have gained more.
BASE_TOLERANCE = 0.005
# By how much a kind of prompts may lose for sure; and with which probability any of them is wrongly found to.
CLUSTER_TOLERANCE, CLUSTER_LEVEL = 0.01, 0.05
# A decision may take so many times as long, or so many seconds longer: machines are busy, and clocks coarse.
LATENCY_RATIO, LATENCY_SECONDS = 2.0, 0.0002
_ROWS, _REPEATS = 8, 15


class ClusterGain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean utility gain on the rows of one kind of prompts; `high` is its upper bound, at a level for all kinds
    together."""

    cluster: int
    rows: int
    gain: float
    high: float


class DecisionTime(msgspec.Struct, frozen=True, kw_only=True):
    """Median seconds of CPU that one decision takes, the frozen encoder apart."""

    candidate: float
    incumbent: float


def dearer(before: Float, after: Float, seed: int) -> Estimate | None:
    """By which share the choices' mean cost rises, paired; costs [n] of the same rows. None for too few rows."""
    if len(before) < MIN_ROWS:
        return None
    weights = metrics.resamples(len(before), RESAMPLES, seed)
    return estimate(float(after.mean() / before.mean()) - 1.0, (weights @ after) / (weights @ before) - 1.0)


def cost_reason(where: str, rise: Estimate | None, gain: Estimate | None) -> str | None:
    """Why the cost is too high: it certainly rises by more than the tolerance, and utility does not certainly rise."""
    if rise is None or rise.low <= COST_TOLERANCE or (gain is not None and gain.low > 0):
        return None
    return (
        f"costs {rise.value:+.1%} [{rise.low:+.1%}, {rise.high:+.1%}] on the {where} without a gain that pays for it; "
        f"at most {COST_TOLERANCE:+.0%} is allowed"
    )


def cluster_gains(clusters: Clusters, embedding: Float, difference: Float) -> list[ClusterGain]:
    """Gains by cluster, the worst first, of rows with `embedding` [n, dim] and paired utility `difference` [n].

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


def decision_time(candidate: OutcomeModel, incumbent: OutcomeModel, rows: EncodedRows) -> DecisionTime | None:
    """Both measured in turn on the same few rows, so that whatever slows the machine slows both."""
    if not len(rows):
        return None
    turns = [
        EncodedTurn(rows.features[i], rows.embedding[i], rows.word_logits[i]) for i in range(min(len(rows), _ROWS))
    ]
    taken: list[tuple[OutcomeModel, list[float]]] = [(candidate, []), (incumbent, [])]
    for _ in range(_REPEATS):
        for model, seconds in taken:
            began = thread_time()
            for turn in turns:
                model.prediction(turn, model.memory.look_up_one(turn.embedding))
            seconds.append((thread_time() - began) / len(turns))
    return DecisionTime(candidate=median(taken[0][1]), incumbent=median(taken[1][1]))


def latency_reason(time: DecisionTime | None) -> str | None:
    """Why decisions take too long."""
    if time is None:
        return None
    allowed = max(LATENCY_RATIO * time.incumbent, time.incumbent + LATENCY_SECONDS)
    if time.candidate <= allowed:
        return None
    return f"a decision takes {time.candidate * 1e6:.0f} us, the incumbent's {time.incumbent * 1e6:.0f} us"
