"""Routing over all tiers of a subset: cost-quality curves for both labels and rules, thresholds from valid rows."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training.dataset import TIERS
from classifier.training.pair_routing import spread
from classifier.training.routing import (
    GRID,
    PRICES,
    Estimate,
    Rule,
    best_parameter,
    choose,
    share_of_tiers,
    utility,
)
from classifier.training.subsets import Subset

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Label = Literal["no_worse", "correct"]
LABELS: tuple[Label, ...] = ("no_worse", "correct")
RULES: tuple[Rule, ...] = ("lambda", "tau")
AIMS = ("best utility", "95 % of the quality")
QUALITY = 0.95
ORACLE = "perfect router"


class LadderRouting(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor under one rule and one label, its parameter chosen on the valid rows for `aim`.

    `quality`: mean score of the answers; `of_strongest`: over the strongest tier's. `over_shuffled`: utility minus that
    of the same choices dealt out at random (same cost); `over_domain`: utility minus the domain-label row's, paired.
    Utility is score - 0.1 x cost share.
    """

    subset: str
    label: str
    predictor: str
    rule: str
    aim: str
    parameter: float
    quality: Estimate
    of_strongest: float
    cost_share: float
    utility: Estimate
    over_shuffled: Estimate
    over_domain: Estimate | None
    shares: dict[str, float]


class RuleDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Utility of the lambda rule minus the tau rule's with the same probabilities, paired."""

    subset: str
    label: str
    predictor: str
    difference: Estimate


class CostQualityCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The rule's sweep on the subset's own rows, for drawing: points (cost share, quality), parameters ascending."""

    subset: str
    label: str
    predictor: str
    rule: str
    points: list[tuple[float, float]]


class LadderReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one subset's ladder."""

    rows: list[LadderRouting]
    rules: list[RuleDifference]
    curves: list[CostQualityCurve]


def chances(p: Float64, one: Subset, label: Label) -> Float64:
    """Probabilities [n, tiers of the subset] that a rule compares, from head probabilities [n, heads]."""
    if label == "correct":
        return p[:, [TIERS - 2 + tier for tier in one.tiers]]
    weaker = p[:, [tier - 1 for tier in one.tiers[:-1]]]
    return np.hstack([weaker, np.ones((len(weaker), 1))])


def ladder_routing(
    one: Subset, p: Mapping[str, Float64], tuned: Subset | None, p_tuned: Mapping[str, Float64], domain_label: str
) -> LadderReport:
    """Both labels, both rules, both aims, every predictor; names and arrays as in `pair_routing`."""
    prices = np.array([PRICES[tier - 1] for tier in one.tiers])
    found = LadderReport(rows=[], rules=[], curves=[])
    for label in LABELS:
        score = one.correct() if label == "correct" else one.no_worse()
        found.curves.append(_oracle(one, label, score, prices))
        # The domain-label row comes first, so that others can be compared with it.
        reference: dict[tuple[str, str], Float64] = {}
        rows: dict[str, list[LadderRouting]] = {}
        for name in sorted(p, key=lambda name: name != domain_label):
            ours = chances(p[name], one, label)
            found.curves.extend(_curve(one, label, name, rule, ours, score, prices) for rule in RULES)
            if tuned is None or tuned.tiers != one.tiers:
                continue
            tuned_score = tuned.correct() if label == "correct" else tuned.no_worse()
            theirs = chances(p_tuned[name], tuned, label)
            worths: dict[tuple[str, str], Float64] = {}
            for rule in RULES:
                for aim in AIMS:
                    parameter = (
                        best_parameter(theirs, tuned_score, prices, rule)
                        if aim == AIMS[0]
                        else cheapest_parameter(theirs, tuned_score, prices, rule)
                    )
                    pick = choose(ours, prices, rule, parameter)
                    worths[rule, aim] = _worth(one, score, prices, pick)
                    compared = reference.get((rule, aim))
                    rows.setdefault(name, []).append(
                        _row(one, label, name, rule, aim, parameter, pick, score, prices, worths[rule, aim], compared)
                    )
            difference = spread(worths["lambda", AIMS[0]] - worths["tau", AIMS[0]])
            found.rules.append(RuleDifference(subset=one.name, label=label, predictor=name, difference=difference))
            if name == domain_label:
                reference = worths
        for name in p:
            found.rows.extend(rows.get(name, []))
    return found


def cheapest_parameter(p: Float64, score: Float64, prices: Float64, rule: Rule) -> float:
    """The grid's parameter that reaches 95 % of the strongest tier's quality on these rows at the least cost; where
    none does, the one of greatest quality."""
    rows = np.arange(len(score))
    picks = [choose(p, prices, rule, t) for t in GRID[rule]]
    quality = np.array([score[rows, pick].mean() for pick in picks])
    cost = np.array([prices[pick].mean() for pick in picks])
    reached = quality >= QUALITY * score[:, -1].mean() - 1e-12
    if not reached.any():
        return GRID[rule][int(quality.argmax())]
    return GRID[rule][int(np.where(reached, cost, np.inf).argmin())]


def _worth(one: Subset, score: Float64, prices: Float64, pick: Indices) -> Float64:
    """Mean utility of the choices on the rows and on every draw."""
    worth = utility(score, prices)[np.arange(len(score)), pick]
    means: Float64 = one.weights @ worth / len(worth)
    return means


def _row(
    one: Subset,
    label: str,
    name: str,
    rule: Rule,
    aim: str,
    parameter: float,
    pick: Indices,
    score: Float64,
    prices: Float64,
    worth: Float64,
    compared: Float64 | None,
) -> LadderRouting:
    n = len(score)
    w, chosen = one.weights, np.eye(len(prices))[pick]
    answered = w @ score[np.arange(n), pick] / n
    dealt = ((w @ chosen / n) * (w @ utility(score, prices) / n)).sum(axis=1)
    return LadderRouting(
        subset=one.name,
        label=label,
        predictor=name,
        rule=rule,
        aim=aim,
        parameter=round(float(parameter), 6),
        quality=spread(answered),
        of_strongest=round(float(answered[0] / score[:, -1].mean()), 4),
        cost_share=round(float(prices[pick].mean() / prices[-1]), 4),
        utility=spread(worth),
        over_shuffled=spread(worth - dealt),
        over_domain=None if compared is None else spread(worth - compared),
        shares=share_of_tiers(pick, one.tiers),
    )


def _curve(
    one: Subset, label: str, name: str, rule: Rule, p: Float64, score: Float64, prices: Float64
) -> CostQualityCurve:
    rows, points = np.arange(len(score)), []
    for parameter in GRID[rule]:
        pick = choose(p, prices, rule, parameter)
        points.append((_rounded(prices[pick].mean() / prices[-1]), _rounded(score[rows, pick].mean())))
    return CostQualityCurve(subset=one.name, label=label, predictor=name, rule=rule, points=list(dict.fromkeys(points)))


def _oracle(one: Subset, label: str, score: Float64, prices: Float64) -> CostQualityCurve:
    """The cheapest tier that is right, and the cheapest of all where none is: no router is better."""
    pick = np.where(score.max(axis=1) > 0, score.argmax(axis=1), 0)
    point = (_rounded(prices[pick].mean() / prices[-1]), _rounded(score.max(axis=1).mean()))
    return CostQualityCurve(subset=one.name, label=label, predictor=ORACLE, rule="oracle", points=[point])


def _rounded(value: float) -> float:
    return round(float(value), 4)
