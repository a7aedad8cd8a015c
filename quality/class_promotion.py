"""Whether a candidate that decides by class may replace the incumbent.

Its probabilities must be certainly nearer to the outcomes than the incumbent's, and nearer than each tier's own rate,
which knows nothing of the prompt, by more than a standard error: shuffled labels teach the rates, and no more.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.outcome_model import OutcomeModel
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.estimates import MIN_ROWS, RESAMPLES, Estimate, estimate
from quality.guards import cluster_gains, cluster_reasons
from quality.promotion import Judgement, calibration_reasons, shown, tier_calibration

Float = npt.NDArray[np.floating]

# Standard errors on either side of an estimate that its interval of 95% spans.
_TWO_SIDED = 1.96


class Predicted(NamedTuple):
    """P(as good) [n, tiers - 1] of n newer rows: the candidate's without having seen the row, the incumbent's, and each
    tier's own rate."""

    candidate: Float
    incumbent: Float
    rate: Float


def judge_by_class(
    candidate: OutcomeModel, incumbent: OutcomeModel, new: EncodedRows, predicted: Predicted, *, seed: int = 0
) -> Judgement:
    """The gate's word on `new` rows by their squared errors (Brier 1950), in [0, 1], paired by row."""
    weaker = predicted.candidate.shape[1]
    errors = [_errors(new, p) for p in predicted]
    gain, over_rate = (_certain(errors[0], other, seed) for other in errors[1:])
    calibration = tier_calibration(new, predicted.candidate, predicted.incumbent, weaker + 1, seed)
    clusters = cluster_gains(incumbent.clusters, new.embedding, errors[1] - errors[0])
    reasons = [
        *_reasons(len(new), gain, over_rate),
        *calibration_reasons(calibration),
        *cluster_reasons(clusters),
    ]
    return Judgement(
        candidate=candidate.version,
        incumbent=incumbent.version,
        new_rows=len(new),
        base_rows=0,
        gain=gain,
        base_gain=None,
        over_shuffled=over_rate,
        calibration=calibration,
        clusters=clusters,
        reasons=reasons,
    )


def _errors(rows: EncodedRows, p: Float) -> Float:
    """[n]: mean squared error over the tiers that were observed on a row."""
    outcomes = rows.labels[:, : p.shape[1]]
    seen = ~np.isnan(outcomes)
    squared = np.where(seen, (p - np.nan_to_num(outcomes)) ** 2, 0.0).sum(axis=1)
    found: Float = squared / np.maximum(seen.sum(axis=1), 1)
    return found


def _certain(ours: Float, theirs: Float, seed: int) -> Estimate | None:
    if len(ours) < MIN_ROWS:
        return None
    difference = theirs - ours
    drawn = metrics.resamples(len(difference), RESAMPLES, seed)
    return estimate(float(difference.mean()), np.asarray(drawn @ difference / drawn.sum(axis=1)))


def _reasons(rows: int, gain: Estimate | None, over_rate: Estimate | None) -> list[str]:
    if gain is None or over_rate is None:
        return [f"{rows} newer rows; a comparison needs at least {MIN_ROWS}"]
    reasons = []
    if gain.low <= 0:
        reasons.append(
            f"its squared error on {rows} newer rows is below the incumbent's by {shown(gain)}; the lower bound must "
            "be above 0"
        )
    if over_rate.value <= (over_rate.high - over_rate.low) / (2 * _TWO_SIDED):
        reasons.append(
            f"its squared error on {rows} newer rows is below that of the tiers' own rates by {shown(over_rate)}; it "
            "must be by more than a standard error"
        )
    return reasons
