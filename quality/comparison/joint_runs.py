"""Runs of all models on the same tasks, as collections publish them: the pairs behind a check, what each gains, the
pairs that promise most before any outcome, and the decision between them (`quality.comparison.session_pairs`).

The prior knows dollars and, where they are given, public scores. Joint outcomes mean something only if rows of one task
belong together. Where models agree no more on which tasks are hard than chance, or tasks on which models are dear or
good, the rows look shuffled, and no pair is named.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from quality.comparison.session_pairs import LEAST_TASKS, Float, PairDecision, Ways, Whole, decide_between

SHORTLIST = 8
"""Pairs that the prior names."""
# Of the permutation tests of whether rows belong together.
_PERMUTATIONS, _ALIGNED = 400, 0.01
# P(second right | first wrong) relative to P(second right), before any label: half-way between independent and equal.
_PRIOR_OVERLAP = 0.6


class Check(msgspec.Struct, frozen=True):
    """How good a check of results is."""

    catches: float = 0.7
    """The share of failed results that it rejects."""
    rejects: float = 0.1
    """The share of good results that it rejects."""


class RunOutcomes(NamedTuple):
    """Of [n, m] runs by task and model: `resolved` in [0, 1], and US dollars; NaN where a model did not run a task."""

    models: Sequence[str]
    resolved: Float
    usd: Float


def complete_runs(outcomes: RunOutcomes) -> RunOutcomes:
    """Return the tasks that all models ran."""
    complete = np.isfinite(outcomes.resolved).all(axis=1)
    return outcomes._replace(resolved=outcomes.resolved[complete], usd=outcomes.usd[complete])


def ordered_pairs(models: int) -> tuple[Whole, Whole]:
    """Return the first and the second of all ordered pairs of `models` different models."""
    first, second = np.nonzero(~np.eye(models, dtype=bool))
    return first, second


def checked_pairs(outcomes: RunOutcomes, check: Check, seen: Float | None = None) -> Ways:
    """Return all ordered pairs behind `check`, by each task's expected outcome: whether the check rejects this very run
    is no luck that a decision should rest on. `seen` [n, m]: the outcomes by which the check rejects, a control's."""
    first, second = ordered_pairs(len(outcomes.models))
    resolved, usd = outcomes.resolved, outcomes.usd
    shown = resolved if seen is None else seen
    rejected = shown * check.rejects + (1 - shown) * check.catches
    kept = resolved * (1 - check.rejects) if seen is None else resolved * (1 - rejected)
    good = kept[:, first] + rejected[:, first] * resolved[:, second]
    return Ways(good, usd[:, first] + rejected[:, first] * usd[:, second])


def best_quality(costs: Sequence[float], qualities: Float, at: Float) -> Float:
    """Return the best quality [n] at each mean cost `at` [n] of a mixture of ways with `costs` [k] and `qualities`
    [n, k]. A mixture may cost less than `at`; there must be a way that does."""
    order = np.argsort(costs, kind="stable")
    prices, values = np.asarray(costs, np.float64)[order], qualities[:, order]
    best = np.full(len(at), -np.inf)
    for i, price in enumerate(prices):
        best = np.where(price <= at + 1e-12, np.maximum(best, values[:, i]), best)
        for j in range(i + 1, len(prices)):
            if prices[j] > price:
                share = (at - price) / (prices[j] - price)
                mixed = values[:, i] + share * (values[:, j] - values[:, i])
                best = np.where((share >= 0) & (share <= 1), np.maximum(best, mixed), best)
    return best


def lottery(resolved: Float, usd: Float, at: Float) -> Float:
    """Return the best mean outcome [k] of a lottery between models with mean outcomes `resolved` [m] and dollars `usd`
    [m] that costs at most `at` [k] on average; minus infinity where no model is so cheap."""
    return best_quality(usd.tolist(), np.broadcast_to(resolved, (len(at), len(resolved))), at)


def true_gains(outcomes: RunOutcomes, check: Check) -> Float:
    """Return the gain of each ordered pair over the lottery of all models at its dollars, on the very tasks that all
    models ran."""
    outcomes = complete_runs(outcomes)
    pairs = checked_pairs(outcomes, check)
    single = outcomes.resolved.mean(axis=0), outcomes.usd.mean(axis=0)
    gains: Float = pairs.resolved.mean(axis=0) - lottery(*single, pairs.usd.mean(axis=0))
    return gains


def decide(outcomes: RunOutcomes, check: Check, prior: Sequence[int] = (), seen: Float | None = None) -> PairDecision:
    """Return what serves the tasks that `outcomes` are a random sample of. `prior`: pairs (places in `ordered_pairs`)
    by `prior_pairs`; `seen`: as for `checked_pairs`. Raises `ValueError` for fewer than two models or two tasks."""
    tasks, models = outcomes.resolved.shape
    if models < 2 or tasks < 2:
        raise ValueError(f"{models} models and {tasks} tasks; two of each are needed")
    order = list(zip(*(side.tolist() for side in ordered_pairs(models)), strict=True))
    single = Ways(outcomes.resolved, outcomes.usd)
    decision = decide_between(outcomes.models, single, checked_pairs(outcomes, check, seen), order, prior)
    why = why_shuffled(outcomes) if decision.verdict == "pays" else ""
    return msgspec.structs.replace(decision, verdict="does_not_pay", because=why) if why else decision


def prior_pairs(usd: Float, check: Check, scores: Float | None = None, most: int = SHORTLIST) -> list[int]:
    """Return the places in `ordered_pairs` of the pairs that promise most before any outcome is known, best first.

    `usd` [m]: mean dollars of a run, or any list price; `scores` [m]: public shares of solved tasks, NaN where a model
    has none. Without a score a model is supposed to be as good as its rank by dollars.
    """
    models = len(usd)
    rank = usd.argsort(kind="stable").argsort(kind="stable") / max(1, models - 1)
    expected = 0.3 + 0.4 * rank
    if scores is not None and np.isfinite(scores).sum() >= 2:
        has_score = np.isfinite(scores)
        slope = np.polyfit(rank[has_score], scores[has_score], 1)
        expected = np.where(has_score, scores, np.clip(np.polyval(slope, rank), 0.01, 0.99))
    first, second = ordered_pairs(models)
    first_solves, second_solves = expected[first], expected[second] * _PRIOR_OVERLAP
    missed, doubted = (1 - first_solves) * check.catches, first_solves * check.rejects
    good = first_solves * (1 - check.rejects) + doubted * expected[second] + missed * second_solves
    paid = usd[first] + (missed + doubted) * usd[second]
    gains = good - lottery(expected, usd, paid)
    if scores is None or not np.isfinite(scores).any():
        # Dollars say nothing of which dear model a dearer one should come before.
        gains[usd[first] > usd[second]] = -np.inf
    order: list[int] = np.argsort(-gains, kind="stable")[:most].tolist()
    return order


def why_shuffled(outcomes: RunOutcomes) -> str:
    """Return why rows of one task do not seem to belong together, "" where they do (at 1%): models agree on which tasks
    are hard, and tasks on which models are dear or good, more than outcomes and dollars that are dealt at random. Only
    tasks that all models ran tell."""
    outcomes = complete_runs(outcomes)
    if len(outcomes.resolved) < LEAST_TASKS:
        return f"all models ran {len(outcomes.resolved)} tasks only, too few to see whether the rows belong together"
    rng = np.random.default_rng(0)
    dear = np.argsort(np.argsort(outcomes.usd, axis=1, kind="stable"), axis=1, kind="stable").astype(np.float64)
    if _agreement_p(outcomes.resolved.T, rng) > _ALIGNED:
        return "the models do not agree on which tasks are hard, as if outcomes were dealt to tasks at random"
    if min(_agreement_p(outcomes.resolved, rng), _agreement_p(dear, rng)) > _ALIGNED / 2:
        return "the tasks do not agree on which models are good or dear, as if rows were dealt to models at random"
    return ""


def _agreement_p(rows: Float, rng: np.random.Generator) -> float:
    """P(the column means of `rows` vary as much as they do), where each row is permuted by itself."""
    seen = rows.mean(axis=0).var()
    dealt = np.array([rng.permuted(rows, axis=1).mean(axis=0).var() for _ in range(_PERMUTATIONS)])
    return float((1 + (dealt >= seen - 1e-12).sum()) / (1 + _PERMUTATIONS))
