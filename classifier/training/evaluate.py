"""The honest evaluation of an outcome model: within-domain AUC, calibration, routing against its shuffled self."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.manifest import Curves
from classifier.outcome_model import OutcomeModel
from classifier.training import metrics
from classifier.training.encoded_rows import EncodedRows
from classifier.training.routing import (
    COST_WEIGHT,
    Estimate,
    Rule,
    apgr_estimate,
    best_parameter,
    choose,
    curve,
    estimate,
    gain_over_shuffled,
    mean_estimate,
    share_of_tiers,
    utility,
)
from classifier.training.row_sets import RowSet, predict_rows, row_sets

Float = npt.NDArray[np.floating]
SIGNED_RULES: tuple[tuple[Rule, int], ...] = (("lambda", 1), ("tau", -1))
RESAMPLES = 1000
MIN_ROWS = 50  # fewer rows give intervals that mean nothing
ECE_TOLERANCE = 0.03  # beyond a perfect model's band; a valid split of some hundred rows cannot promise less
MODEL_ROW, DOMAIN_ROW = "outcome model", "domain's mean (label known)"


class HeadMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How well one outcome is predicted on one set. `ece_band`: what a perfect model stays below in 95 % of cases."""

    set: str
    head: str
    predictor: str
    rows: int
    rate: float
    auc: Estimate
    auc_within: Estimate
    brier: float
    brier_of_rate: float
    ece: float
    ece_band: float
    slope: float


class RoutingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor under one rule on one set, its parameter chosen on the valid split; `gain` is over the
    cost-matched shuffled control. `label`: the score counted, "no_worse" or "correct"."""

    set: str
    label: str
    predictor: str
    rule: str
    parameter: float | None
    quality: Estimate
    cost_share: float
    utility: Estimate
    gain: Estimate
    shares: dict[str, float]


class RuleComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Utility of the lambda rule minus that of the tau rule with the same probabilities, paired."""

    set: str
    label: str
    difference: Estimate


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured. `apgr`: (set, predictor, estimate), cheapest against strongest tier."""

    heads: list[HeadMetrics]
    routing: list[RoutingMetrics]
    rules: list[RuleComparison]
    apgr: list[tuple[str, str, Estimate]]
    default_rule: str


def domain_means(train: EncodedRows, rows: EncodedRows) -> npt.NDArray[np.float32]:
    """Head probabilities [n, heads] that know each row's group and nothing else: its training rate, smoothed."""
    overall = np.nanmean(train.labels, axis=0)
    rates = {}
    for group in np.unique(rows.group):
        labels = train.labels[train.group == group]
        seen = (~np.isnan(labels)).sum(axis=0)
        rates[int(group)] = (np.nansum(labels, axis=0) + 5 * overall) / (seen + 5)
    return np.array([rates[int(g)] for g in rows.group], np.float32)


def valid_curves(p: Float, valid: EncodedRows, tiers: int) -> Curves | None:
    """Curves of both rules on the valid rows with every tier observed, and the better rule there.

    None if there are no such rows. The default quality target is the lambda curve's at lambda = 0.1,
    the yardstick's own price of cost.
    """
    full = next((s for s in row_sets(valid, tiers) if len(s.tiers) == tiers), None)
    if full is None:
        return None
    p_ok, no_worse = full.p_ok(p), full.scores["no_worse"]
    correct = full.scores.get("correct", no_worse)
    chosen = choose(p_ok, full.prices, "lambda", COST_WEIGHT)
    return Curves(
        rows=len(no_worse),
        prices=full.prices.tolist(),
        lambda_rule=curve(p_ok, no_worse, correct, full.prices, "lambda"),
        tau_rule=curve(p_ok, no_worse, correct, full.prices, "tau"),
        default_rule=_better_rule(p_ok, full),
        default_quality_target=round(float(no_worse[np.arange(len(chosen)), chosen].mean()), 4),
    )


def evaluate(
    model: OutcomeModel,
    *,
    train: EncodedRows,
    valid: EncodedRows,
    test: EncodedRows,
    baselines: Mapping[str, tuple[Float, Float]] | None = None,
    prefix: str = "",
    seed: int = 0,
) -> Report:
    """Measure `model` on `test`; every threshold comes from `valid`. `baselines`: name → head probabilities of
    (valid, test), [n, >= tiers - 1] each. `prefix` names the sets, e.g. "unseen domains, "."""
    tiers = model.manifest.tiers
    predictors: dict[str, tuple[Float, Float]] = {
        MODEL_ROW: (predict_rows(model, valid), predict_rows(model, test)),
        DOMAIN_ROW: (domain_means(train, valid), domain_means(train, test)),
        **(baselines or {}),
    }
    valid_sets = {tuple(s.tiers): s for s in row_sets(valid, tiers)}
    heads: list[HeadMetrics] = []
    routing: list[RoutingMetrics] = []
    rules: list[RuleComparison] = []
    gaps: list[tuple[str, str, Estimate]] = []
    for one in row_sets(test, tiers, prefix):
        if int(one.mask.sum()) < MIN_ROWS:
            continue
        draws = metrics.resamples(int(one.mask.sum()), RESAMPLES, seed)
        for name in (MODEL_ROW, DOMAIN_ROW):
            heads += _head_metrics(model, name, one, test, predictors[name][1], draws, seed)
        tuned = valid_sets.get(tuple(one.tiers))
        if tuned is None:
            continue
        for label in one.scores:
            rows, difference = _routing(one, tuned, label, predictors, draws)
            routing += rows
            rules.append(difference)
        score = one.scores.get("correct", one.scores["no_worse"])
        for name, (_, p) in predictors.items():
            gaps.append((one.name, name, apgr_estimate(score, 1 - one.p_ok(p)[:, 0], draws[:200])))
    return Report(
        heads=heads,
        routing=routing,
        rules=rules,
        apgr=gaps,
        default_rule=model.manifest.curves.default_rule,
    )


def refusal_reasons(report: Report) -> list[str]:
    """Why this model must not serve; empty if it may.

    A router has to beat its own choices dealt out at random, and its probabilities have to be calibrated.
    """
    rows = [
        r
        for r in report.routing
        if r.predictor == MODEL_ROW and r.rule == report.default_rule and r.label == "no_worse"
    ]
    if not rows:
        return [f"no set of at least {MIN_ROWS} rows to compare with the shuffled control"]
    widest = max(rows, key=lambda r: len(r.shares))
    reasons = []
    if widest.gain.low <= 0:
        reasons.append(
            f"{widest.set}: utility over the cost-matched shuffled control is {widest.gain.value:+.4f} "
            f"[{widest.gain.low:+.4f}, {widest.gain.high:+.4f}]; the interval must lie above 0"
        )
    reasons += [
        f"{h.set}, {h.head}: calibration error {h.ece:.3f} is above a perfect model's band {h.ece_band:.3f} "
        f"+ {ECE_TOLERANCE}"
        for h in report.heads
        if h.predictor == MODEL_ROW and h.head.startswith("no_worse") and h.ece > h.ece_band + ECE_TOLERANCE
    ]
    return reasons


def _better_rule(p_ok: Float, rows: RowSet) -> Rule:
    """The tau rule if its utility is significantly higher, averaged over the labels; else the lambda rule, which
    does not spend the dearest tier on hopeless prompts."""
    n = np.arange(len(p_ok))
    difference = np.zeros(len(p_ok))
    for score in rows.scores.values():
        worth = utility(score, rows.prices)
        for rule, sign in SIGNED_RULES:
            best = best_parameter(p_ok, score, rows.prices, rule)
            difference += sign * worth[n, choose(p_ok, rows.prices, rule, best)] / len(rows.scores)
    draws = metrics.resamples(len(n), RESAMPLES, seed=0) @ difference / len(n)
    return "tau" if estimate(float(difference.mean()), draws).high < 0 else "lambda"


def _head_metrics(
    model: OutcomeModel, name: str, one: RowSet, rows: EncodedRows, p: Float, draws: Float, seed: int
) -> list[HeadMetrics]:
    found = []
    group = rows.group[one.mask]
    for index, head in enumerate(model.manifest.heads):
        y, score = rows.labels[one.mask, index].astype(np.float64), p[one.mask, index].astype(np.float64)
        if np.isnan(y).any() or y.min() == y.max():
            continue
        pooled = metrics.auc(y, score), metrics.interval(metrics.auc(y, score, weights=draws[:300]))
        within = metrics.auc(y, score, group), metrics.interval(metrics.auc(y, score, group, draws[:300]))
        found.append(
            HeadMetrics(
                set=one.name,
                head=head,
                predictor=name,
                rows=len(y),
                rate=round(float(y.mean()), 4),
                auc=Estimate(round(float(pooled[0][0]), 4), *(round(v, 4) for v in pooled[1])),
                auc_within=Estimate(round(float(within[0][0]), 4), *(round(v, 4) for v in within[1])),
                brier=round(metrics.brier(y, score), 4),
                brier_of_rate=round(float(y.mean() * (1 - y.mean())), 4),
                ece=round(metrics.calibration_error(y, score), 4),
                ece_band=round(metrics.calibration_band(score, seed), 4),
                slope=round(metrics.calibration_slope(y, np.clip(score, 1e-4, 1 - 1e-4)), 3),
            )
        )
    return found


def _routing(
    one: RowSet, tuned: RowSet, label: str, predictors: Mapping[str, tuple[Float, Float]], draws: Float
) -> tuple[list[RoutingMetrics], RuleComparison]:
    score, prices = one.scores[label], one.prices
    worth, rows = utility(score, prices), np.arange(len(score))
    found = []
    by_rule: dict[str, Float] = {}
    rules: tuple[Rule, Rule] = ("lambda", "tau")
    for name, (p_valid, p_test) in predictors.items():
        for rule in rules:
            parameter = best_parameter(tuned.p_ok(p_valid), tuned.scores[label], prices, rule)
            pick = choose(one.p_ok(p_test), prices, rule, parameter)
            if name == MODEL_ROW:
                by_rule[rule] = worth[rows, pick]
            found.append(_routing_row(one, label, name, rule, parameter, pick, draws))
    for column, tier in enumerate(one.tiers):
        pick = np.full(len(score), column)
        found.append(_routing_row(one, label, f"always tier {tier}", "fixed", None, pick, draws))
    difference = by_rule["lambda"] - by_rule["tau"]
    compared = estimate(float(difference.mean()), draws @ difference / len(difference))
    return found, RuleComparison(set=one.name, label=label, difference=compared)


def _routing_row(
    one: RowSet,
    label: str,
    predictor: str,
    rule: str,
    parameter: float | None,
    pick: npt.NDArray[np.intp],
    draws: Float,
) -> RoutingMetrics:
    score = one.scores[label]
    worth, rows = utility(score, one.prices), np.arange(len(score))
    return RoutingMetrics(
        set=one.name,
        label=label,
        predictor=predictor,
        rule=rule,
        parameter=None if parameter is None else round(parameter, 6),
        quality=mean_estimate(score[rows, pick], draws),
        cost_share=round(float((one.prices / one.prices[-1])[pick].mean()), 4),
        utility=mean_estimate(worth[rows, pick], draws),
        gain=gain_over_shuffled(worth, pick, draws),
        shares=share_of_tiers(pick, one.tiers),
    )
