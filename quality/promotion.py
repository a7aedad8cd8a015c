"""Whether a candidate classifier may replace the incumbent: its gain on held-out rows, and the guards it must pass."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.outcome_model import OutcomeModel
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.estimates import ECE_TOLERANCE, MIN_ROWS, RESAMPLES, Estimate, estimate
from classifier.training.row_sets import RowSet, predict_rows, row_sets
from classifier.worth import COST_WEIGHT, choose, utility
from quality.guards import (
    BASE_TOLERANCE,
    ClusterGain,
    DecisionTime,
    cluster_gains,
    cluster_reasons,
    cost_reason,
    dearer,
    decision_time,
    latency_reason,
)

Float = npt.NDArray[np.floating]


class TierCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration error of the candidate for one tier on the newer rows.

    `allowed` is a perfect model's 95% band plus a tolerance, or the incumbent's own error if that is larger. `sharper`:
    the candidate's probabilities are certainly nearer to the outcomes than the incumbent's, by squared error (Brier
    1950), however calibrated either is. A guard must not keep a worse model.
    """

    tier: int
    rows: int
    error: float
    allowed: float
    sharper: bool = False


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence and the decision. Utility is the share no worse minus 0.1 of the cost share (DESIGN §4).

    `gain`: utility of the candidate minus the incumbent's on the newer rows that neither saw, paired; `base_gain`: the
    same on the base data's held rows; `over_shuffled`: the candidate against its own choices dealt out at random,
    over both. `dearer`: by which share its choices cost more on the newer rows, `base_dearer` on the base data's. None
    where there are too few rows. `clusters`: gains by kind of prompt, over both, the worst first.

    `compared_on`: "probes" are uniformly random requests that every tier answered; while there are too few of them it
    is "verified rows", the sampled answers with the weights of their sampling. `outdated`: by tier whose answers have
    changed, how many of the new rows are from before and no longer say how often it fails. `reasons` are the refusals;
    empty means promote.

    Of a version that decides by class `gain` and `over_shuffled` are reductions of the squared error of its
    probabilities (`quality.class_promotion`).
    """

    candidate: str
    incumbent: str
    new_rows: int
    base_rows: int
    gain: Estimate | None
    base_gain: Estimate | None
    over_shuffled: Estimate | None
    calibration: list[TierCalibration]
    dearer: Estimate | None = None
    base_dearer: Estimate | None = None
    clusters: list[ClusterGain] = []
    time: DecisionTime | None = None
    compared_on: Literal["probes", "verified rows"] = "verified rows"
    outdated: dict[int, int] = {}
    reasons: list[str]

    @property
    def promote(self) -> bool:
        """Whether the candidate may serve."""
        return not self.reasons


class _Observed:
    """Rows on which the same tiers were observed, with what either model would choose there."""

    def __init__(
        self, rows: RowSet, encoded: EncodedRows, p_candidate: Float, p_incumbent: Float, lambda_: float
    ) -> None:
        self.worth = utility(rows.scores["no_worse"], rows.prices)
        self.pick = choose(rows.p_ok(p_candidate), rows.prices, "lambda", lambda_)
        before = choose(rows.p_ok(p_incumbent), rows.prices, "lambda", lambda_)
        each = np.arange(len(self.pick))
        self.difference = self.worth[each, self.pick] - self.worth[each, before]
        self.cost, self.cost_before = rows.prices[self.pick], rows.prices[before]
        self.weights, self.embedding = encoded.weights[rows.mask], encoded.embedding[rows.mask]


def judge_candidate(
    candidate: OutcomeModel,
    incumbent: OutcomeModel,
    new: EncodedRows,
    base: EncodedRows,
    *,
    predicted: Float | None = None,
    lambda_: float = COST_WEIGHT,
    seed: int = 0,
) -> Judgement:
    """Compare on `new` (newer rows) and `base` (the base data's held rows), both models routing by `lambda_`, as they
    would serve. `predicted` [new rows, heads]: what the candidate's training predicts for newer rows without having
    seen them, where the candidate itself was trained on them; without it, they must have trained nothing.

    Of `new` only the full-ladder probes count as soon as there are `MIN_ROWS` of them (DESIGN §5). Until then a row
    counts for the tiers whose outcome it has: a model chooses between those, so that verified traffic, where the judged
    and the strongest tier are known, compares models on its own ground.
    """
    tiers = candidate.manifest.tiers
    ours = predict_rows(candidate, new) if predicted is None else predicted
    probes = np.flatnonzero(~np.isnan(new.labels[:, : tiers - 1]).any(axis=1))
    on_probes = len(probes) >= MIN_ROWS
    if on_probes:
        new, ours = new.take(probes), ours[probes]
    theirs = predict_rows(incumbent, new)
    newer = _observed(new, ours, theirs, tiers, lambda_)
    older = _observed(base, predict_rows(candidate, base), predict_rows(incumbent, base), tiers, lambda_)
    both = [*newer, *older]
    gain, base_gain = _gain(newer, seed), _gain(older, seed)
    over_shuffled = _over_shuffled(both, seed)
    calibration = tier_calibration(new, ours, theirs, tiers, seed)
    rise, base_rise = _dearer(newer, seed), _dearer(older, seed)
    clusters = cluster_gains(incumbent.clusters, _joined(both, "embedding"), _joined(both, "difference"))
    time = decision_time(candidate, incumbent, new if len(new) else base)
    guards = [cost_reason("newer rows", rise, gain), cost_reason("base data", base_rise, base_gain)]
    guards += [*cluster_reasons(clusters), latency_reason(time)]
    return Judgement(
        candidate=candidate.version,
        incumbent=incumbent.version,
        new_rows=_count(newer),
        base_rows=_count(older),
        gain=gain,
        base_gain=base_gain,
        over_shuffled=over_shuffled,
        calibration=calibration,
        dearer=rise,
        base_dearer=base_rise,
        clusters=clusters,
        time=time,
        compared_on="probes" if on_probes else "verified rows",
        reasons=[
            *_reasons(_count(newer), gain, base_gain, over_shuffled, calibration),
            *(reason for reason in guards if reason is not None),
        ],
    )


def _observed(rows: EncodedRows, ours: Float, theirs: Float, tiers: int, lambda_: float) -> list[_Observed]:
    return [_Observed(one, rows, ours, theirs, lambda_) for one in row_sets(rows, tiers)] if len(rows) else []


def _count(sets: Sequence[_Observed]) -> int:
    return sum(len(one.pick) for one in sets)


def _gain(sets: Sequence[_Observed], seed: int) -> Estimate | None:
    if _count(sets) < MIN_ROWS:
        return None
    difference, weights = _joined(sets, "difference"), _joined(sets, "weights")
    drawn = metrics.resamples(len(difference), RESAMPLES, seed)
    draws = drawn @ (weights * difference) / np.maximum(drawn @ weights, 1e-9)
    return estimate(float(weights @ difference / weights.sum()), np.asarray(draws))


def _dearer(sets: Sequence[_Observed], seed: int) -> Estimate | None:
    return dearer(_joined(sets, "cost_before"), _joined(sets, "cost"), seed)


def _joined(sets: Sequence[_Observed], name: str) -> Float:
    joined: Float = np.concatenate([getattr(one, name) for one in sets]) if sets else np.zeros(0)
    return joined


def _over_shuffled(sets: Sequence[_Observed], seed: int) -> Estimate | None:
    """Choices are dealt out at random within each set, so that the control costs the same there (DESIGN §4)."""
    total = _count(sets)
    if total < MIN_ROWS:
        return None
    value, draws = 0.0, np.zeros(RESAMPLES)
    for number, one in enumerate(sets):
        n, tiers = one.worth.shape
        chosen, onehot = one.worth[np.arange(n), one.pick], np.eye(tiers)[one.pick]
        weights = np.vstack([np.ones((1, n)), metrics.resamples(n, RESAMPLES, seed + number)])
        shuffled = ((weights @ onehot / n) * (weights @ one.worth / n)).sum(axis=1)
        gains = weights @ chosen / n - shuffled
        value += n / total * float(gains[0])
        draws += n / total * gains[1:]
    return estimate(value, draws)


def tier_calibration(rows: EncodedRows, ours: Float, theirs: Float, tiers: int, seed: int) -> list[TierCalibration]:
    """By tier with enough rows, of `ours` against what `theirs` allows; both [n, at least tiers - 1]."""
    found = []
    for tier in range(1, tiers):
        seen = ~np.isnan(rows.labels[:, tier - 1])
        if int(seen.sum()) < MIN_ROWS:
            continue
        y, score = rows.labels[seen, tier - 1].astype(np.float64), ours[seen, tier - 1].astype(np.float64)
        theirs_seen = theirs[seen, tier - 1].astype(np.float64)
        before = metrics.calibration_error(y, theirs_seen)
        nearer = (y - theirs_seen) ** 2 - (y - score) ** 2
        found.append(
            TierCalibration(
                tier=tier,
                rows=len(y),
                error=round(metrics.calibration_error(y, score), 4),
                allowed=round(max(metrics.calibration_band(score, seed) + ECE_TOLERANCE, before), 4),
                sharper=bool(nearer.mean() > 1.96 * nearer.std(ddof=1) / len(y) ** 0.5),
            )
        )
    return found


def _reasons(
    rows: int,
    gain: Estimate | None,
    base_gain: Estimate | None,
    over_shuffled: Estimate | None,
    calibration: Sequence[TierCalibration],
) -> list[str]:
    reasons = []
    if gain is None:
        reasons.append(f"{rows} newer held-out rows; a comparison needs at least {MIN_ROWS}")
    elif gain.low <= 0:
        reasons.append(f"gain on {rows} newer rows is {shown(gain)}; the lower bound must be above 0")
    if base_gain is not None and base_gain.high < -BASE_TOLERANCE:
        reasons.append(f"loses on the base data: {shown(base_gain)}")
    if over_shuffled is None or over_shuffled.low <= 0:
        control = "unknown" if over_shuffled is None else shown(over_shuffled)
        reasons.append(f"gain over the cost-matched shuffled control is {control}; the lower bound must be above 0")
    return [*reasons, *calibration_reasons(calibration)]


def calibration_reasons(calibration: Sequence[TierCalibration]) -> list[str]:
    """The tiers whose probabilities are too far from the outcomes."""
    return [
        f"tier {one.tier}: calibration error {one.error:.3f} on {one.rows} rows is above {one.allowed:.3f}"
        for one in calibration
        if one.error > one.allowed and not one.sharper
    ]


def shown(value: Estimate) -> str:
    """An estimate as reasons print it."""
    return f"{value.value:+.4f} [{value.low:+.4f}, {value.high:+.4f}]"
