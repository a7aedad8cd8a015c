"""Which two models serve runs of agents, in which order, or one model alone: decided from tasks of known outcome.

A *pair* runs its first model, and where a check rejects the result, its second. It pays where it resolves more than the
best lottery between ALL single models at the same dollars. By duality a pair's gain is the greatest, over exchange
rates x (resolved tasks a dollar), of the least, over single models j, of mean(R - r_j) - x mean(C - c_j): a pair gains
if at ONE rate it beats EVERY model in utility (`classifier.policy.utility` has the same objective). Each bound on a
pair at a rate is the weakest of those against the models (an intersection-union test, Berger 1982, has no multiplicity
in j). Over pairs and rates the bounds are simultaneous: the critical value is a quantile of their joint maximum by a
multiplier bootstrap (Chernozhukov, Chetverikov and Kato 2013). Pairs are eliminated first at the rates where they lose
(Hansen, "A test for superior predictive ability", 2005): a hundred tasks cannot tell a thousand pairs apart.

The prior knows dollars and, where they are given, public scores. It orders pairs before any label. Half of the error
probability goes to the few pairs that a caller names by it; else all pairs share it.

Joint outcomes mean something only if rows of one task belong together. Where models agree no more on which tasks are
hard than chance, or tasks on which models are dear or good, the rows look shuffled, and no pair is named.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import exchange_of

Float = npt.NDArray[np.float64]
Whole = npt.NDArray[np.intp]

LEVEL = 0.04
"""Probability of a wrong "pays", at most."""
LEAST_TASKS = 20
"""Fewer say nothing: a bound from the normal distribution needs some of each outcome."""
RATES = 40
BOOTSTRAP = 400
SHORTLIST = 8
"""Pairs that the prior names, with half of `LEVEL`."""
# Pairs are eliminated at rates where they lose by more standard errors. Such a one is never the greatest of all.
_ELIMINATED = -0.5
# Models whose difference to a pair is by more standard errors above the weakest one's do not matter for its bound.
_NEAR = 4.0
# Added to each sum of squares of n differences: those that are all alike have no variance by chance.
_PSEUDO_SQUARES = 0.1
# Of the permutation tests of whether rows belong together.
_PERMUTATIONS, _ALIGNED = 400, 0.01
# P(second right | first wrong) relative to P(second right), before any label: half-way between independent and equal.
_PRIOR_OVERLAP = 0.6

Verdict = Literal["pays", "does_not_pay"]


class Check(msgspec.Struct, frozen=True):
    """`catches`: the share of failed results that it rejects; `rejects`: that of good ones."""

    catches: float = 0.7
    rejects: float = 0.1


class RunOutcomes(NamedTuple):
    """Of [n, m] runs by task and model: `resolved` in [0, 1], and US dollars."""

    models: Sequence[str]
    resolved: Float
    usd: Float


class Ways(NamedTuple):
    """Ways to serve, by [n, k] values of independent tasks whose means are those of each way: resolved, and US
    dollars."""

    resolved: Float
    usd: Float


class PairDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What serves runs of agents: `first` and then `second` where the check rejects, if the verdict is "pays"; else the
    same names are what is worth trying, and `alone` serves.

    `gain`: share of tasks by which the pair is estimated to beat the best lottery between all models at its dollars,
    and `low` its lower bound. `usd`: of the pair, a task. `eliminated`: pairs that clearly lose, of `pairs`. `because`:
    the verdict's reason in words.
    """

    verdict: Verdict
    first: str
    second: str
    alone: str
    gain: float
    low: float
    usd: float
    tasks: int
    pairs: int
    eliminated: int
    because: str


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


def lottery(resolved: Float, usd: Float, at: Float) -> Float:
    """Return the best mean outcome [k] of a lottery between models with mean outcomes `resolved` [m] and dollars `usd`
    [m] that costs at most `at` [k] on average; minus infinity where no model is so cheap."""
    best = np.full(at.shape, -np.inf)
    order = np.argsort(usd, kind="stable")
    prices, values = usd[order], resolved[order]
    for i, price in enumerate(prices):
        best = np.where(price <= at, np.maximum(best, values[i]), best)
        for j in np.nonzero(prices > price)[0]:
            share = (at - price) / (prices[j] - price)
            mixed = values[i] + share * (values[j] - values[i])
            best = np.where((share >= 0) & (share <= 1), np.maximum(best, mixed), best)
    return best


def true_gains(outcomes: RunOutcomes, check: Check) -> Float:
    """Return the gain of each ordered pair over the lottery of all models at its dollars, on these very tasks."""
    pairs = checked_pairs(outcomes, check)
    single = outcomes.resolved.mean(axis=0), outcomes.usd.mean(axis=0)
    gains: Float = pairs.resolved.mean(axis=0) - lottery(*single, pairs.usd.mean(axis=0))
    return gains


class _Bounds(NamedTuple):
    """Of pairs by rate, [k, rates]: the mean difference of utility to the single model that is surest not to lose, in
    resolved tasks, and its standard error."""

    mean: Float
    error: Float


def decide_between(
    names: Sequence[str], single: Ways, pairs: Ways, order: Sequence[tuple[int, int]], shortlist: Sequence[int] = ()
) -> PairDecision:
    """Return the decision between `single` models [n, m], called `names`, and `pairs` [n, k], of the two models each
    that `order` names. `shortlist`: pairs that the prior named before the outcomes were known."""
    tasks = len(single.resolved)
    paid, right = single.usd.mean(axis=0), single.resolved.mean(axis=0)
    rates = _rates(paid)
    bounds = _bounds(single, pairs, rates)
    scores = bounds.mean / bounds.error
    alive = scores > _ELIMINATED
    listed = np.zeros(len(order), bool)
    listed[list(shortlist)] = True
    low = np.full(len(order), -np.inf)
    for family in (listed, ~listed) if listed.any() else (~listed,):
        level = LEVEL / 2 if listed.any() else LEVEL
        kept = alive & family[:, None]
        if kept.any():
            lower = bounds.mean - _critical(single, pairs, rates, kept, level) * bounds.error
            low[family] = np.where(kept, lower, -np.inf).max(axis=1)[family]
    best = int(low.argmax() if low.max() > 0 else scores.max(axis=1).argmax())
    value = right - exchange_of(DEFAULT_TARGET) * paid / paid[right.argmax()] if paid.max() > 0 else right
    first, second = order[best]
    pays = tasks >= LEAST_TASKS and bool(low[best] > 0)
    return PairDecision(
        verdict="pays" if pays else "does_not_pay",
        first=names[first],
        second=names[second],
        alone=names[int(value.argmax())],
        gain=float(bounds.mean[best].max()),
        low=float(low[best]),
        usd=float(pairs.usd[:, best].mean()),
        tasks=tasks,
        pairs=len(order),
        eliminated=int((~alive.any(axis=1)).sum()),
        because="its lower bound is above 0 against every model" if pays else "no pair's lower bound is above 0",
    )


def _rates(paid: Float) -> Float:
    """Exchange rates from 0 to where dollars are all that counts, in resolved tasks a dollar."""
    most = float(paid.max()) or 1.0
    least = max(float(paid[paid > 0].min()) if (paid > 0).any() else most, most * 1e-4)
    return np.concatenate([[0.0], np.geomspace(0.02 / most, 2.0 / least, RATES)])


def _bounds(single: Ways, pairs: Ways, rates: Float) -> _Bounds:
    everything = np.arange(pairs.resolved.shape[1])
    means, errors = np.empty((2, len(everything), len(rates)))
    for place, rate in enumerate(rates):
        mean, error = _differences(single, pairs, rate, everything)
        weakest = (mean / error).argmin(axis=1)
        means[:, place], errors[:, place] = mean[everything, weakest], error[everything, weakest]
    return _Bounds(means, errors)


def _differences(single: Ways, pairs: Ways, rate: float, rows: Whole) -> tuple[Float, Float]:
    """The mean differences [k, m] of the utility of pairs `rows` to single models', and their standard errors."""
    tasks = len(single.resolved)
    ours, theirs = _utility(pairs, rate)[:, rows], _utility(single, rate)
    mean = ours.mean(axis=0)[:, None] - theirs.mean(axis=0)
    ours, theirs = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
    squares = np.square(ours).sum(axis=0)[:, None] + np.square(theirs).sum(axis=0) - 2 * ours.T @ theirs
    return mean, np.sqrt((np.maximum(squares, 0) + _PSEUDO_SQUARES) / (tasks - 1) / tasks)


def _critical(single: Ways, pairs: Ways, rates: Float, kept: npt.NDArray[np.bool_], level: float) -> float:
    """The number of standard errors that the greatest rise, by chance, of the weakest bounds of the `kept` pairs and
    rates [k, rates] exceeds with probability `level`. A bound rises only if those against all models do that are near
    it, so that models which are nearly as strong make a rise less likely."""
    tasks = len(single.resolved)
    normal = np.random.default_rng(0).standard_normal((BOOTSTRAP, tasks)) / tasks
    most = np.full(BOOTSTRAP, -np.inf)
    for place, rate in enumerate(rates):
        if not len(rows := np.nonzero(kept[:, place])[0]):
            continue
        mean, error = _differences(single, pairs, rate, rows)
        scores = mean / error
        ours, theirs = _utility(pairs, rate)[:, rows], _utility(single, rate)
        drawn, drawn_single = normal @ (ours - ours.mean(axis=0)), normal @ (theirs - theirs.mean(axis=0))
        weakest = scores.min(axis=1)
        rises = np.full((BOOTSTRAP, len(rows)), np.inf)
        for model in np.nonzero((scores < weakest[:, None] + _NEAR).any(axis=0))[0]:
            moved = (drawn - drawn_single[:, model, None]) / error[:, model] + scores[:, model]
            rises = np.minimum(rises, moved)
        most = np.maximum(most, (rises - weakest).max(axis=1))
    critical = float(np.quantile(most, 1 - level))
    # Of Student's t, by the first term of Cornish and Fisher: errors are estimated from few tasks.
    return critical * (1 + (critical**2 + 1) / (4 * (tasks - 1)))


def _utility(ways: Ways, rate: float) -> Float:
    utility: Float = ways.resolved - rate * ways.usd
    return utility


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
        known = np.isfinite(scores)
        slope = np.polyfit(rank[known], scores[known], 1)
        expected = np.where(known, scores, np.clip(np.polyval(slope, rank), 0.01, 0.99))
    first, second = ordered_pairs(models)
    one, other = expected[first], expected[second] * _PRIOR_OVERLAP
    missed, doubted = (1 - one) * check.catches, one * check.rejects
    good = one * (1 - check.rejects) + doubted * expected[second] + missed * other
    paid = usd[first] + (missed + doubted) * usd[second]
    gains = good - lottery(expected, usd, paid)
    if scores is None or not np.isfinite(scores).any():
        # Dollars say nothing of which dear model a dearer one should come before.
        gains[usd[first] > usd[second]] = -np.inf
    order: list[int] = np.argsort(-gains, kind="stable")[:most].tolist()
    return order


def why_shuffled(outcomes: RunOutcomes) -> str:
    """Return why rows of one task do not seem to belong together, "" where they do (at 1%): models agree on which tasks
    are hard, and tasks on which models are dear or good, more than outcomes and dollars that are dealt at random."""
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
