"""Candidate against incumbent on the same newer rows, paired: what a promotion is decided on."""

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.errors import TrainingDataError
from classifier.outcome_model import OutcomeModel
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.evaluate import MIN_ROWS, RESAMPLES, predict_rows, row_sets
from classifier.training.routing import (
    COST_WEIGHT,
    PRICES,
    Estimate,
    choose,
    estimate,
    gain_over_shuffled,
    utility,
)

BRIER_TOLERANCE = 0.005
MIN_GROUP_ROWS = 20


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both models under the lambda rule with lambda = 0.1, the yardstick's own price of cost.

    `gain`: utility (share no worse - 0.1 cost share) of the candidate minus the incumbent's. `cost`: the same for the
    cost share. `over_shuffled`: the candidate against its own choices dealt out at random. Brier scores are means over
    the tiers. `worst_group`: the cluster with the least gain and that gain, None if none has 20 rows.
    """

    candidate: str
    incumbent: str
    rows: int
    gain: Estimate
    cost: Estimate
    over_shuffled: Estimate
    brier_candidate: float
    brier_incumbent: float
    worst_group: tuple[int, Estimate] | None


def compare(
    candidate: OutcomeModel,
    incumbent: OutcomeModel,
    rows: EncodedRows,
    *,
    prices: tuple[float, ...] = PRICES,
    seed: int = 0,
) -> Comparison:
    """Compare on the `rows` with every tier's outcome (probes, newer than what either was trained on).

    `rows` are encoded once: both models must share the encoder. Raises `TrainingDataError` if they do not, or if
    fewer than 50 rows have every tier observed.
    """
    if candidate.manifest.encoder["sha256"] != incumbent.manifest.encoder["sha256"]:
        raise TrainingDataError(
            f"{candidate.version} and {incumbent.version} have different encoders; compare them from the texts."
        )
    tiers = candidate.manifest.tiers
    full = next((s for s in row_sets(rows, tiers) if len(s.tiers) == tiers), None)
    n = 0 if full is None else int(full.mask.sum())
    if full is None or n < MIN_ROWS:
        raise TrainingDataError(f"{n} rows have every tier's outcome; a comparison needs at least {MIN_ROWS}.")
    price = np.array(prices)
    no_worse, each = full.scores["no_worse"], np.arange(n)
    worth, share = utility(no_worse, price), price / price[-1]
    p = [full.p_ok(predict_rows(model, rows)) for model in (candidate, incumbent)]
    picks = [choose(p_ok, price, "lambda", COST_WEIGHT) for p_ok in p]
    brier = [float(np.mean((p_ok[:, :-1] - no_worse[:, :-1]) ** 2)) for p_ok in p]
    difference = worth[each, picks[0]] - worth[each, picks[1]]
    draws = metrics.resamples(n, RESAMPLES, seed)
    cost = share[picks[0]] - share[picks[1]]
    return Comparison(
        candidate=candidate.version,
        incumbent=incumbent.version,
        rows=n,
        gain=estimate(float(difference.mean()), draws @ difference / n),
        cost=estimate(float(cost.mean()), draws @ cost / n),
        over_shuffled=gain_over_shuffled(worth, picks[0], draws),
        brier_candidate=round(brier[0], 6),
        brier_incumbent=round(brier[1], 6),
        worst_group=_worst_group(rows.group[full.mask], difference, seed),
    )


def promotion_refusals(comparison: Comparison) -> list[str]:
    """Why the candidate must not replace the incumbent; empty if it may."""
    c = comparison
    reasons = []
    if c.gain.low <= 0:
        reasons.append(
            f"gain over {c.incumbent} is {c.gain.value:+.4f} [{c.gain.low:+.4f}, {c.gain.high:+.4f}] on {c.rows} rows; "
            "the lower bound must be above 0"
        )
    if c.over_shuffled.low <= 0:
        reasons.append(f"gain over its shuffled control may be {c.over_shuffled.low:+.4f}; it must be above 0")
    if c.brier_candidate > c.brier_incumbent + BRIER_TOLERANCE:
        reasons.append(f"Brier score rises from {c.brier_incumbent:.4f} to {c.brier_candidate:.4f}")
    if c.worst_group is not None and c.worst_group[1].high < 0:
        reasons.append(f"cluster {c.worst_group[0]} loses {-c.worst_group[1].value:.4f}, significantly")
    return reasons


def _worst_group(
    group: npt.NDArray[np.int32], difference: npt.NDArray[np.float64], seed: int
) -> tuple[int, Estimate] | None:
    found = []
    for one in np.unique(group):
        values = difference[group == one]
        if len(values) >= MIN_GROUP_ROWS:
            draws = metrics.resamples(len(values), RESAMPLES, seed) @ values / len(values)
            found.append((int(one), estimate(float(values.mean()), draws)))
    return min(found, key=lambda pair: pair[1].value, default=None)
