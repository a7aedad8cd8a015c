"""Which two models serve runs of agents, in which order, or one model alone: decided from tasks of known outcome.

A *pair* runs its first model, and where a check rejects the result, its second. It pays where it resolves more than the
best lottery between ALL single models at the same dollars. By duality a pair's gain is the greatest, over exchange
rates x (resolved tasks a dollar), of the least, over single models j, of mean(R - r_j) - x mean(C - c_j): a pair gains
if at ONE rate it beats EVERY model in utility (`classifier.policy.utility` has the same objective). Each bound on a
pair at a rate is the weakest of those against the models (an intersection-union test, Berger 1982, has no multiplicity
in j). Over pairs and rates the bounds are simultaneous: the critical value is a quantile of their joint maximum by a
multiplier bootstrap (Chernozhukov, Chetverikov and Kato 2013). Pairs are eliminated first at the rates where they lose
(Hansen, "A test for superior predictive ability", 2005): a hundred tasks cannot tell a thousand pairs apart.

Half of the error probability goes to the few pairs that a caller names before any outcome is known; else all pairs
share it.

Of a client's sessions, each piece of work ran on the tier that routing chose, so tiers are compared on different work;
what a session's own bad end moved up was done again, and says what the second tier makes of the first one's failures. A
bad end is the check.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import exchange_of
from quality.estimates.session_work import Work

Float = npt.NDArray[np.float64]
Whole = npt.NDArray[np.intp]

LEVEL = 0.04
"""Probability of a wrong "pays", at most."""
LEAST_TASKS = 20
"""Fewer say nothing: a bound from the normal distribution needs some of each outcome."""
RATES = 40
BOOTSTRAP = 400
# Pairs are eliminated at rates where they lose by more standard errors. Such a one is never the greatest of all.
_ELIMINATED = -0.5
# Models whose difference to a pair is by more standard errors above the weakest one's do not matter for its bound.
_NEAR = 4.0
# Added to each sum of squares of n differences: those that are all alike have no variance by chance.
_PSEUDO_SQUARES = 0.1

PairVerdict = Literal["pays", "does_not_pay"]


class Ways(NamedTuple):
    """Ways to serve, by [n, k] values of independent tasks whose means are a way's: resolved, and US dollars. NaN where
    a way did not run a task: two ways are compared on the tasks that both ran."""

    resolved: Float
    usd: Float


class PairDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What serves runs of agents: `first`, and then `second` where the check rejects, if the verdict is "pays". Else
    the two names are what is worth trying, and `alone` serves.
    """

    verdict: PairVerdict
    first: str
    second: str
    alone: str
    gain: float
    """Share of tasks by which the pair is estimated to beat the best lottery between all models at its dollars."""
    low: float
    """Lower bound of the gain."""
    usd: float
    """US dollars of the pair per task."""
    tasks: int
    pairs: int
    eliminated: int
    """How many of `pairs` clearly lose."""
    because: str
    """The verdict's reason in words."""


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
    paid = np.nanmean(single.usd, axis=0)
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
    first, second = order[best]
    pays = tasks >= LEAST_TASKS and bool(low[best] > 0)
    return PairDecision(
        verdict="pays" if pays else "does_not_pay",
        first=names[first],
        second=names[second],
        alone=names[_best_alone(single, paid)],
        gain=float(bounds.mean[best].max()),
        low=float(low[best]),
        usd=float(np.nanmean(pairs.usd[:, best])),
        tasks=tasks,
        pairs=len(order),
        eliminated=int((~alive.any(axis=1)).sum()),
        because="its lower bound is above 0 against every model" if pays else "no pair's lower bound is above 0",
    )


def _best_alone(single: Ways, paid: Float) -> int:
    """Return the model of the highest utility at the default target, by its mean difference to each other model."""
    best = int(np.nanmean(single.resolved, axis=0).argmax())
    rate = exchange_of(DEFAULT_TARGET) / paid[best] if paid[best] > 0 else 0.0
    mean, _ = _differences(single, single, rate, np.arange(len(paid)))
    return int(mean.mean(axis=1).argmax())


def _rates(paid: Float) -> Float:
    """Exchange rates from 0 to where dollars are all that counts, in resolved tasks a dollar."""
    most = float(paid.max()) or 1.0
    least = max(float(paid[paid > 0].min()) if (paid > 0).any() else most, most * 1e-4)
    return np.concatenate([[0.0], np.geomspace(0.02 / most, 2.0 / least, RATES)])


def _bounds(single: Ways, pairs: Ways, rates: Float) -> _Bounds:
    everything = np.arange(pairs.resolved.shape[1])
    means, errors = np.empty((2, len(everything), len(rates)))
    for column, rate in enumerate(rates):
        mean, error = _differences(single, pairs, rate, everything)
        weakest = (mean / error).argmin(axis=1)
        means[:, column], errors[:, column] = mean[everything, weakest], error[everything, weakest]
    return _Bounds(means, errors)


def _differences(single: Ways, pairs: Ways, rate: float, rows: Whole) -> tuple[Float, Float]:
    """The mean differences [k, m] of the utility of pairs `rows` to single models', and their standard errors. Two that
    have fewer than two tasks in common cannot be compared: the pair is then taken to lose."""
    ours, theirs = _utility(pairs, rate)[:, rows], _utility(single, rate)
    ran, others_ran = (np.isfinite(values).astype(np.float64) for values in (ours, theirs))
    # Less their means, so that sums of squares lose no digits.
    middle = np.nanmean(ours, axis=0), np.nanmean(theirs, axis=0)
    ours, theirs = np.nan_to_num(ours - middle[0]), np.nan_to_num(theirs - middle[1])
    tasks = ran.T @ others_ran
    count = np.maximum(tasks, 2.0)
    apart = (ours.T @ others_ran - ran.T @ theirs) / count
    squares = np.square(ours).T @ others_ran + ran.T @ np.square(theirs) - 2 * ours.T @ theirs - count * apart**2
    error = np.sqrt((np.maximum(squares, 0) + _PSEUDO_SQUARES) / (count - 1) / count)
    mean = apart + middle[0][:, None] - middle[1]
    return np.where(tasks < 2, -1.0, mean), np.where(tasks < 2, 1.0, error)


def _critical(single: Ways, pairs: Ways, rates: Float, kept: npt.NDArray[np.bool_], level: float) -> float:
    """The number of standard errors that the greatest rise, by chance, of the weakest bounds of the `kept` pairs and
    rates [k, rates] exceeds with probability `level`. A bound rises only if those against all models do that are near
    it, so that models which are nearly as strong make a rise less likely."""
    tasks = len(single.resolved)
    normal = np.random.default_rng(0).standard_normal((BOOTSTRAP, tasks))
    most = np.full(BOOTSTRAP, -np.inf)
    for column, rate in enumerate(rates):
        if not len(rows := np.nonzero(kept[:, column])[0]):
            continue
        mean, error = _differences(single, pairs, rate, rows)
        scores = mean / error
        ours, theirs = _utility(pairs, rate)[:, rows], _utility(single, rate)
        weakest = scores.min(axis=1)
        rises = np.full((BOOTSTRAP, len(rows)), np.inf)
        for model in np.nonzero((scores < weakest[:, None] + _NEAR).any(axis=0))[0]:
            off = ours - theirs[:, model, None] - mean[:, model]
            drawn = normal @ np.nan_to_num(off) / np.maximum(np.isfinite(off).sum(axis=0), 1)
            rises = np.minimum(rises, drawn / error[:, model] + scores[:, model])
        most = np.maximum(most, (rises - weakest).max(axis=1))
    critical = float(np.quantile(most, 1 - level))
    # Of Student's t, by the first term of Cornish and Fisher: errors are estimated from few tasks.
    return critical * (1 + (critical**2 + 1) / (4 * (tasks - 1)))


def _utility(ways: Ways, rate: float) -> Float:
    utility: Float = ways.resolved - rate * ways.usd
    return utility


LEAST_AGAIN = 10
"""Pieces of work that a second tier did again, for a pair to be judged."""


class SessionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one client's sessions."""

    client: str
    work: int
    """Pieces of work with a known end."""
    sentence: str
    """The verdict as a sentence."""
    decision: PairDecision | None = None
    """None where too little is known for one."""


def session_verdicts(work: Sequence[Work]) -> list[SessionVerdict]:
    """Return the verdict on each client of `work`, those with most of it first."""
    by_client: dict[str, list[Work]] = {}
    for piece in work:
        by_client.setdefault(piece.client, []).append(piece)
    return [_verdict(client, by_client[client]) for client in sorted(by_client, key=lambda name: -len(by_client[name]))]


def _verdict(client: str, work: Sequence[Work]) -> SessionVerdict:
    ways = session_ways(work)
    decision = None if ways is None else decide_between(*ways)
    pieces = f"{len(work)} pieces of work with a known end"
    if decision is None:
        said = (
            f"not known yet which tiers serve these sessions: {pieces}; a verdict needs {LEAST_TASKS} on each of two "
            f"tiers, and {LEAST_AGAIN} done again after a bad end"
        )
    elif decision.verdict == "pays":
        said = (
            f"{decision.first}, and {decision.second} after a bad end, ends well {100 * decision.gain:.1f} times "
            f"in 100 more than the best mix of single tiers at the same dollars "
            f"(at least {100 * decision.low:.1f}; {pieces})"
        )
    else:
        said = (
            "no pair of tiers is shown to beat the best mix of single tiers at the same dollars "
            f"({pieces}); of single tiers {decision.alone} is worth most"
        )
    sentence = f"{client or 'Other tools'}: {said}."
    return SessionVerdict(client=client, work=len(work), sentence=sentence, decision=decision)


def session_ways(work: Sequence[Work]) -> tuple[list[str], Ways, Ways, list[tuple[int, int]]] | None:
    """Return the tiers' names, the ways of single tiers and of pairs, and which two each pair has; None where fewer
    than two tiers or no pair have enough work.

    A value is an estimate and what its piece of work moves it by (an influence function), so that values of different
    work have their mean and its variance in one table.
    """
    tiers = np.array([piece.tier for piece in work])
    made = np.array([[piece.good, piece.usd] for piece in work], np.float64)
    measured_tiers = [tier for tier in sorted(set(tiers.tolist())) if (tiers == tier).sum() >= LEAST_TASKS]
    again = np.array([piece.again.tier if piece.again is not None else 0 for piece in work])
    second = np.array([[p.again.good, p.again.usd] if p.again is not None else [0.0, 0.0] for p in work], np.float64)
    order = [
        (i, j)
        for i, first in enumerate(measured_tiers)
        for j, other in enumerate(measured_tiers)
        if ((tiers == first) & (again == other)).sum() >= LEAST_AGAIN
    ]
    if len(measured_tiers) < 2 or not order:
        return None
    single = [_influenced(made, tiers == tier, len(work)) for tier in measured_tiers]
    pairs = []
    for i, j in order:
        on_first, moved = tiers == measured_tiers[i], (tiers == measured_tiers[i]) & (again == measured_tiers[j])
        # One success and one failure more: follow-ups that all ended alike have no variance by chance.
        after = second[moved].sum(axis=0) + np.array([1.0, 2 * second[moved][:, 1].mean()])
        after /= moved.sum() + 2
        bad = 1.0 - made[:, :1]
        values = _influenced(made + bad * after, on_first, len(work))
        share = float(bad[on_first].mean()) * len(work) / moved.sum()
        values[moved] += share * (second[moved] - after)
        pairs.append(values)
    names = [f"tier {tier}" for tier in measured_tiers]
    return names, _ways(single), _ways(pairs), order


def _influenced(values: np.ndarray, of: np.ndarray, pieces: int) -> np.ndarray:
    """The mean of `values` [n, 2] over the pieces `of` them, as values [n, 2] of all `pieces` with its variance."""
    mean = values[of].mean(axis=0)
    influenced = np.tile(mean, (pieces, 1))
    influenced[of] += pieces / of.sum() * (values[of] - mean)
    return influenced


def _ways(values: Sequence[np.ndarray]) -> Ways:
    stacked = np.stack(values, axis=1)
    return Ways(stacked[:, :, 0], stacked[:, :, 1])
