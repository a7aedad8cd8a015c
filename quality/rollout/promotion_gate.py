"""The promotion gate: may a candidate classifier replace the incumbent?

All labels must be shown to depend on their prompts (`quality.comparison.association`). Others teach only how often each
tier is good, which needs no classifier. On newer labels the candidate must decide differently from the incumbent, and
certainly be better: by the utility of its decisions at the target and the prices that serve, or by its squared error
(`quality.comparison.decision_gain`). Neither against the incumbent nor against each tier's own rate, which ignores the
prompt, may it be certainly worse by one of the two.

A candidate must not ruin one kind of prompts either, however well it scores on all (`class_reasons`)."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity
from classifier.local.cells import Labels
from classifier.model.outcome_model import OutcomeModel
from classifier.training.metrics import metrics
from quality.comparison.association import Association
from quality.comparison.decision_gain import LEAST_DIFFERENT, Compared, Serving, utility_gains
from quality.statistics import ECE_TOLERANCE, MIN_ROWS, RESAMPLES, Estimate, estimate

Float = npt.NDArray[np.floating]

# The allowed certain loss of a class, and the probability of finding any loss wrongly.
CLASS_TOLERANCE, CLASS_LEVEL = 0.01, 0.05


class ClassGain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean gain on the rows of one complexity class."""

    complexity: str
    rows: int
    gain: float
    high: float
    """The gain's upper bound, at a level for all classes together."""


def class_gains(classes: Float, difference: Float) -> list[ClassGain]:
    """Return gains by most likely class, worst first, for P of `classes` [n, 4] and paired `difference` [n].

    Classes with fewer than `MIN_ROWS` rows are left out. The bounds hold for all classes together (Bonferroni).
    """
    if not len(classes):
        return []
    likeliest = classes.argmax(axis=1) + 1
    tested = [complexity for complexity in Complexity if np.count_nonzero(likeliest == complexity) >= MIN_ROWS]
    if not tested:
        return []
    z = NormalDist().inv_cdf(1.0 - CLASS_LEVEL / len(tested))
    gains = []
    for complexity in tested:
        mine = difference[likeliest == complexity]
        mean, error = float(mine.mean()), float(mine.std(ddof=1)) / len(mine) ** 0.5
        high = round(mean + z * error, 6)
        gains.append(ClassGain(complexity=complexity.name, rows=len(mine), gain=round(mean, 6), high=high))
    return sorted(gains, key=lambda gain: gain.high)


def class_reasons(gains: Sequence[ClassGain]) -> list[str]:
    """Return a reason for each class that certainly loses."""
    return [
        f"loses on the {gain.rows} {gain.complexity} rows: {gain.gain:+.4f}, at most {gain.high:+.4f}"
        for gain in gains
        if gain.high < -CLASS_TOLERANCE
    ]


# Half width of a 95% interval in standard errors.
_TWO_SIDED = 1.96


class TierCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration error of the candidate for one tier on the newer rows."""

    tier: int
    rows: int
    error: float
    allowed: float
    """A perfect model's 95% band plus a tolerance, or the incumbent's own error if that is larger."""
    sharper: bool = False
    """Whether the candidate's squared error (Brier 1950) is significantly below the incumbent's, whatever the
    calibration of either; the guard must not keep a worse model.
    """
    slope: Estimate | None = None
    """Slope of the outcomes on the candidate's logits, with its 95% interval; 0.9 to 1.1 is wanted (SPEC RT-06). None
    where it is not determined, as by outcomes that are all alike. It is reported and refuses nothing: some hundred rows
    know it to about 0.2.
    """


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence and the decision, on the newer rows that the incumbent was not trained on. Gains are None with too
    few rows.
    """

    candidate: str
    incumbent: str
    new_rows: int
    gain: Estimate | None
    """The reduction of squared error (Brier 1950, in [0, 1]) against the incumbent, paired by row."""
    over_rates: Estimate | None
    """The reduction of squared error against the tiers' own rates."""
    utility: Estimate | None = None
    """The gain of its decisions against the incumbent, in shares of answers that are no worse."""
    utility_over_rates: Estimate | None = None
    """The gain of its decisions against the tiers' own rates."""
    association: float | None = None
    """The p-value of all its labels if they did not depend on their prompts. Older judgements have none."""
    calibration: list[TierCalibration]
    classes: list[ClassGain] = []
    """Gains by complexity class, the worst first."""
    outdated: dict[int, int] = {}
    """By tier whose answers have changed, the number of new rows from before the change."""
    reasons: list[str]
    """The refusals; if there are none, the candidate is promoted."""

    @property
    def promote(self) -> bool:
        """Whether the candidate may serve."""
        return not self.reasons


class Predicted(NamedTuple):
    """P(as good) [n, tiers - 1] of n newer rows: by the candidate without having seen the row, by the incumbent, and by
    each tier's own rate."""

    candidate: Float
    incumbent: Float
    rate: Float


def judge_candidate(
    candidate: OutcomeModel,
    incumbent: OutcomeModel,
    new: Labels,
    predicted: Predicted,
    serving: Serving,
    association: Association,
    *,
    seed: int = 0,
) -> Judgement:
    """Decide on `candidate` by the `new` labels, for a catalogue that serves as `serving` says; `association`: of all
    labels with their prompts."""
    errors = [_errors(new.scores, p) for p in predicted]
    by_incumbent, by_rates = (
        _compared(new, predicted.candidate, other, error - errors[0], serving, seed)
        for other, error in zip(predicted[1:], errors[1:], strict=True)
    )
    calibration = tier_calibration(new.scores, predicted.candidate, predicted.incumbent, seed)
    classes = class_gains(new.classes, errors[1] - errors[0])
    return Judgement(
        candidate=candidate.version,
        incumbent=incumbent.version,
        new_rows=len(new),
        gain=by_incumbent and by_incumbent.error,
        over_rates=by_rates and by_rates.error,
        utility=by_incumbent and by_incumbent.utility,
        utility_over_rates=by_rates and by_rates.utility,
        association=association.p,
        calibration=calibration,
        classes=classes,
        reasons=[
            *_reasons(len(new), by_incumbent, by_rates, association),
            *calibration_reasons(calibration),
            *class_reasons(classes),
        ],
    )


def tier_calibration(scores: Float, ours: Float, theirs: Float, seed: int) -> list[TierCalibration]:
    """Return the calibration by tier with enough rows, of `ours` against what `theirs` allows; all [n, tiers - 1],
    `scores` with NaN for unobserved outcomes."""
    calibrations = []
    for tier in range(1, scores.shape[1] + 1):
        seen = ~np.isnan(scores[:, tier - 1])
        if int(seen.sum()) < MIN_ROWS:
            continue
        y, score = scores[seen, tier - 1].astype(np.float64), ours[seen, tier - 1].astype(np.float64)
        theirs_seen = theirs[seen, tier - 1].astype(np.float64)
        before = metrics.calibration_error(y, theirs_seen)
        nearer = (y - theirs_seen) ** 2 - (y - score) ** 2
        calibrations.append(
            TierCalibration(
                tier=tier,
                rows=len(y),
                error=round(metrics.calibration_error(y, score), 4),
                allowed=round(max(metrics.calibration_band(score, seed) + ECE_TOLERANCE, before), 4),
                sharper=bool(nearer.mean() > _TWO_SIDED * nearer.std(ddof=1) / len(y) ** 0.5),
                slope=_slope(y, score),
            )
        )
    return calibrations


def _slope(y: Float, p: Float) -> Estimate | None:
    interval = metrics.calibration_slope_interval(y, p)
    if interval is None or not np.isfinite(interval).all():
        return None
    return Estimate(*(round(part, 3) for part in interval))


def calibration_reasons(calibration: Sequence[TierCalibration]) -> list[str]:
    """Return a reason for each tier whose probabilities are too far from the outcomes."""
    return [
        f"tier {tier.tier}: calibration error {tier.error:.3f} on {tier.rows} rows is above {tier.allowed:.3f}"
        for tier in calibration
        if tier.error > tier.allowed and not tier.sharper
    ]


def shown(value: Estimate) -> str:
    """Format an estimate for reasons."""
    return f"{value.value:+.4f} [{value.low:+.4f}, {value.high:+.4f}]"


def _errors(scores: Float, p: Float) -> Float:
    """Return [n]: mean squared error over the observed tiers of each row."""
    seen = ~np.isnan(scores)
    squared = np.where(seen, (p - np.nan_to_num(scores)) ** 2, 0.0).sum(axis=1)
    errors: Float = squared / np.maximum(seen.sum(axis=1), 1)
    return errors


def _compared(new: Labels, ours: Float, theirs: Float, error: Float, serving: Serving, seed: int) -> Compared | None:
    """Compare by `error` [n], the reduction of squared error, and by utility; None with too few rows."""
    if len(new) < MIN_ROWS:
        return None
    drawn = metrics.resamples(len(new), RESAMPLES, seed)
    seen = np.maximum((~np.isnan(new.scores)).sum(axis=1), 1)
    utility = utility_gains(new.scores, theirs, ours, serving).sum(axis=1) / seen
    by_error, by_utility = (
        estimate(float(gain.mean()), np.asarray(drawn @ gain / drawn.sum(axis=1))) for gain in (error, utility)
    )
    return Compared(by_error, by_utility, int(np.count_nonzero(utility)))


def _reasons(
    rows: int, by_incumbent: Compared | None, by_rates: Compared | None, association: Association
) -> list[str]:
    if by_incumbent is None or by_rates is None:
        return [f"{rows} newer rows; a comparison needs at least {MIN_ROWS}"]
    reasons = []
    if not association.is_shown:
        reasons.append(
            f"its labels do not certainly depend on their prompts: p = {association.p:.4f}, and at most "
            f"{association.level:.4f} is allowed"
        )
    if not by_incumbent.improves:
        reasons.append(
            f"on {rows} newer rows it is not certainly better than the incumbent: {_shown(by_incumbent)}; one lower "
            f"bound must be above 0, no upper bound below, and decisions must differ on {LEAST_DIFFERENT} rows"
        )
    if by_rates.is_worse:
        reasons.append(f"on {rows} newer rows it is certainly worse than the tiers' own rates: {_shown(by_rates)}")
    return reasons


def _shown(compared: Compared) -> str:
    return f"utility above by {shown(compared.utility)}, squared error below by {shown(compared.error)}"
