"""All tables of one evaluation as data: predictions of many predictors on the same rows, seen and never seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training.dataset import TIERS
from classifier.training.feature_costs import FeatureCost
from classifier.training.ladder_routing import CostQualityCurve, LadderRouting, RuleDifference, ladder_routing
from classifier.training.learning_curve import LearningPoint
from classifier.training.noise_ceiling import RepeatMetrics, SharpnessCeiling, sharpness_ceiling
from classifier.training.pair_routing import PairRouting, pair_routing
from classifier.training.probabilities import ProbabilityMetrics, Reliability, probability_metrics, reliability
from classifier.training.registered import DOMAIN_LABEL, SHIPPED
from classifier.training.subsets import MIN_ROWS, RESAMPLES, Outcomes, Subset, subset, subsets
from classifier.training.target_check import TargetCheck
from classifier.training.unseen import FallbackMetrics, LabelledMetrics, NoveltyMetrics

Float64 = npt.NDArray[np.float64]
FORMAT = 1


@dataclass
class Predictions:
    """Probabilities by predictor, float64 [rows, heads] each, for the rows on which thresholds are chosen (`tuned`) and
    those that are measured (`measured`)."""

    tuned: dict[str, Float64] = field(default_factory=dict)
    measured: dict[str, Float64] = field(default_factory=dict)

    def add(self, name: str, tuned: npt.NDArray[np.floating], measured: npt.NDArray[np.floating]) -> None:
        self.tuned[name], self.measured[name] = tuned.astype(np.float64), measured.astype(np.float64)


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Every predictor on every subset of one set of rows."""

    probabilities: list[ProbabilityMetrics]
    pairs: list[PairRouting]
    ladder: list[LadderRouting]
    rules: list[RuleDifference]
    curves: list[CostQualityCurve]
    reliability: list[Reliability]


class Unseen(msgspec.Struct, frozen=True, kw_only=True):
    """Domains that trained nothing: `tables` as for the test split, one subset per domain too."""

    hold: list[str]
    rows: int
    tables: Tables
    novelty: list[NoveltyMetrics]
    fallback: list[FallbackMetrics]
    labelled: list[LabelledMetrics]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `aio classifier evaluate`, without any prompt's text.

    `left_out`: predictor → why it has no row.
    `within_1_ms`: predictors that fit the request path's budget. `refitted`: the version whose recipe was fitted anew
    for `unseen` and `learning`, if it is another. `decision_ms`: CPU milliseconds of one decision
    (median, p99), by what was decided.
    """

    format: int
    version: str
    encoder: str
    split: str
    date: str
    machine: str
    data_sha256: str
    rows: dict[str, int]
    refusals: list[str]
    targets: list[TargetCheck]
    within_1_ms: list[str]
    left_out: dict[str, str]
    test: Tables
    unseen: Unseen | None
    learning: list[LearningPoint]
    repeats: list[RepeatMetrics]
    sharpness: list[SharpnessCeiling]
    costs: list[FeatureCost]
    decision_ms: dict[str, tuple[float, float]]
    refitted: str = ""


def tables(
    outcomes: Outcomes,
    predictions: Predictions,
    tuned: Outcomes | None,
    *,
    by_domain: bool = False,
    drawn: Sequence[str] = (SHIPPED, DOMAIN_LABEL),
    draws: int = RESAMPLES,
    seed: int = 0,
) -> Tables:
    """Measure every predictor on every subset of `outcomes`; thresholds come from the rows of `tuned` that share the
    subset's tiers and family. Curves and diagrams are kept of the predictors in `drawn` alone."""
    found = Tables(probabilities=[], pairs=[], ladder=[], rules=[], curves=[], reliability=[])
    for one in subsets(outcomes, by_domain=by_domain, draws=draws, seed=seed):
        valid = None if tuned is None else _tuning_rows(outcomes, one, tuned)
        p = {name: every[one.at] for name, every in predictions.measured.items()}
        p_valid = {} if valid is None else {name: every[valid.at] for name, every in predictions.tuned.items()}
        found.probabilities.extend(probability_metrics(one, p, DOMAIN_LABEL, seed))
        p = {name: every for name, every in p.items() if _complete(one, every)}
        found.pairs.extend(pair_routing(one, p, valid, p_valid, DOMAIN_LABEL))
        if not by_domain or ":" not in one.name:
            ladder = ladder_routing(one, p, valid, p_valid, DOMAIN_LABEL)
            found.ladder.extend(ladder.rows)
            found.rules.extend(ladder.rules)
            found.curves.extend(c for c in ladder.curves if c.predictor in drawn or c.rule == "oracle")
            for head in one.heads():
                if SHIPPED in p:
                    found.reliability.append(reliability(one, head, SHIPPED, p[SHIPPED][:, head]))
    return found


def _complete(one: Subset, p: Float64) -> bool:
    """Whether there is a probability of everything that routing on this subset compares."""
    columns = [*(tier - 1 for tier in one.tiers[:-1]), *(TIERS - 2 + tier for tier in one.tiers)]
    return not np.isnan(p[:, columns]).any()


def _tuning_rows(outcomes: Outcomes, one: Subset, tuned: Outcomes) -> Subset | None:
    """The rows of `tuned` to choose thresholds on: of the same sources with the same tiers observed, or any with."""

    whole = ~np.isnan(tuned.labels[:, [TIERS - 2 + tier for tier in one.tiers]]).any(axis=1)
    same = np.isin(tuned.source, np.unique(outcomes.source[one.at])) & whole
    for chosen in (same, whole):
        if int(chosen.sum()) >= MIN_ROWS:
            found = subset(tuned, one.name, np.flatnonzero(chosen), draws=1)
            # Of rows with more tiers observed only the subset's own are looked at.
            return Subset(found.name, found.at, one.tiers, found.labels, found.domain, found.draws)
    return None


def sharpness(outcomes: Outcomes, p: Mapping[str, Float64], names: Sequence[str]) -> list[SharpnessCeiling]:
    """The ceilings that the named predictors' own probabilities set, on every subset."""
    return [
        ceiling
        for one in subsets(outcomes, draws=1)
        for name in names
        if name in p
        for ceiling in sharpness_ceiling(one, name, p[name][one.at])
    ]
