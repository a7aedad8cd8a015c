"""What the stage of agreement is worth on recorded answers: cost, quality, and points over a lottery.

All costs and qualities are shares of what the strongest tier alone costs and reaches. The lottery is the best mixture
of fixed tiers at the same cost, by their true rates on the same rows. Intervals are bootstrapped over prompts, with
labels over their draws as well.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.cascade.hull import best_by_group, least_cost
from benchmarks.cascade.recorded import Asked
from benchmarks.cascade.stage import Judge, Known, Served, serve
from classifier.policy.utility import utility
from quality.comparison.joint_runs import best_quality

Float = npt.NDArray[np.float64]

RESAMPLES = 2000
DRAWS = 10
# The quality at which costs are compared, as a share of the strongest tier's.
ENOUGH = 0.98


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """`gain`: points over the lottery, with its 95% interval; `shuffled_gain`: the same with the agreements dealt out
    among the compared prompts at random, at equal cost; `gain_over_domains`: points over a lottery that also knows the
    tiers' rates in each domain. `cost_at_98`: least cost of a mixture with fixed tiers that reaches 98% of the
    strongest's quality. `asked`: share of prompts on which cheap answers were compared; `agreed`: share of these that
    agreed. `utility`: points of the objective of routing (P(no worse than the strongest) less 1 - target of the price),
    over the best fixed tier; `more`: over the same decisions without agreement, with its 95% interval."""

    cost: float
    quality: float
    gain: float
    gain_low: float
    gain_high: float
    shuffled_gain: float
    gain_over_domains: float
    cost_at_98: float
    lottery_cost_at_98: float
    agreed: float
    asked: float
    utility: float
    more: float
    more_low: float
    more_high: float


def without_labels(rows: Sequence[Asked], prices: Sequence[float], target: float, seed: int) -> Worth:
    """Return the worth where every request asks for agreement and nothing was ever verified."""
    rng = np.random.default_rng(seed)
    served = serve(rows, prices, Known([], prices), target, rng.permutation(len(rows)), asked=True)
    return _worth([_Drawn(rows, prices, served)], target, rng)


def after_labels(
    rows: Sequence[Asked], prices: Sequence[float], target: float, labels: int, seed: int, noise: float = 0.0
) -> Worth | None:
    """Return the worth on the other rows after `labels` verified ones, mean over `DRAWS` draws of these, by a judge who
    errs in a share `noise` of verdicts. No request asks for agreement: the counts decide. None if no rows are left to
    measure."""
    if labels >= len(rows):
        return None
    rng = np.random.default_rng(seed)
    drawn = []
    for draw in range(DRAWS):
        order = rng.permutation(len(rows))
        verified, left = [rows[i] for i in order[:labels]], [rows[i] for i in order[labels:]]
        served = serve(
            left, prices, Known(verified, prices, Judge(noise, draw)), target, np.arange(len(left)), asked=False
        )
        drawn.append(_Drawn(left, prices, served))
    return _worth(drawn, target, rng)


class _Drawn:
    """One run of the stage with its sums by prompt. `weight` [p]; all else is multiplied by it: `fixed` [p, tiers], the
    tiers' quality, `sent`, `shuffled` and `cost` [p] of the stage."""

    def __init__(self, rows: Sequence[Asked], prices: Sequence[float], served: Served) -> None:
        weight = np.array([row.weight for row in rows])
        right = np.array([[answer.right for answer in row.answers] for row in rows])
        at, share = np.arange(len(rows)), _mean(served.agreed, weight * served.asked)
        kept, raised = right[at, served.middle - 1], right[at, served.higher - 1]
        sent = right[at, served.tier - 1]
        shuffled = np.where(served.asked, share * kept + (1 - share) * raised, sent)
        self.prices = np.array(prices) / prices[-1]
        self.agreed, self.asked = share, _mean(served.asked, weight)
        prompts = np.unique([row.prompt for row in rows], return_inverse=True)[1]
        no_worse, relative = (right >= right[:, -1:]).astype(float), served.cost / prices[-1]
        more = no_worse[at, served.tier - 1] - no_worse[at, served.alone - 1]
        dearer = relative - self.prices[served.alone - 1]
        columns = (np.ones(len(rows)), sent, shuffled, relative, no_worse[at, served.tier - 1], more, dearer)
        columns = (*columns, *no_worse.T, *right.T)
        domains = np.unique([f"{row.source} {row.domain}" for row in rows], return_inverse=True)[1]
        weights = np.bincount(domains, weight)
        fixed = np.stack([np.bincount(domains, weight * column) / weights for column in right.T], axis=1)
        cost = _mean(served.cost / prices[-1], weight)
        self.domains_best = best_by_group(self.prices.tolist(), fixed, weights / weights.sum(), cost)
        self._sums = np.stack([np.bincount(prompts, weight * column) for column in columns], axis=1)

    def means(self, resamples: int, rng: np.random.Generator) -> Float:
        """Return [1 + resamples, 6 + 2 tiers]: quality sent, shuffled, and cost; P(no worse) sent, and that and cost
        more than without agreement; fixed tiers' P(no worse), then their quality. The first row is of the prompts as
        they are."""
        n = len(self._sums)
        counts = [np.ones((1, n)), *(rng.multinomial(n, np.full(n, 1 / n), 1) for _ in range(resamples))]
        totals = np.concatenate([count @ self._sums for count in counts])
        means: Float = totals[:, 1:] / totals[:, :1]
        return means

    def gains(self, means: Float) -> tuple[Float, Float]:
        """Return the points over the lottery [n] of what was sent, and shuffled."""
        lottery = best_quality(self.prices.tolist(), means[:, -len(self.prices) :], means[:, 2])
        return 100 * (means[:, 0] - lottery), 100 * (means[:, 1] - lottery)


def _worth(drawn: Sequence[_Drawn], target: float, rng: np.random.Generator) -> Worth:
    means = [draw.means(RESAMPLES // len(drawn), rng) for draw in drawn]
    more = [100 * (mean[:, 4] - (1 - target) * mean[:, 5]) for mean in means]
    more_low, more_high = np.quantile(np.concatenate([part[1:] for part in more]), (0.025, 0.975))
    gains = [draw.gains(mean) for draw, mean in zip(drawn, means, strict=True)]
    low, high = np.quantile(np.concatenate([sent[1:] for sent, _ in gains]), (0.025, 0.975))
    points = [_point(draw, mean[0], target) for draw, mean in zip(drawn, means, strict=True)]
    averages: dict[str, Any] = {name: float(np.mean([point[name] for point in points])) for name in points[0]}
    return Worth(
        gain=float(np.mean([sent[0] for sent, _ in gains])),
        gain_low=float(low),
        gain_high=float(high),
        shuffled_gain=float(np.mean([shuffled[0] for _, shuffled in gains])),
        more=float(np.mean([part[0] for part in more])),
        more_low=float(more_low),
        more_high=float(more_high),
        **averages,
    )


def _point(drawn: _Drawn, mean: Float, target: float) -> dict[str, float]:
    tiers = len(drawn.prices)
    sent, cost, fixed, no_worse = float(mean[0]), float(mean[2]), mean[-tiers:], mean[-2 * tiers : -tiers]
    strongest = float(fixed[-1])
    net = utility(float(mean[3]), cost, 1.0, 1 - target) - utility(no_worse, drawn.prices, np.ones(tiers), 1 - target)
    ways = list(zip(drawn.prices.tolist(), fixed.tolist(), strict=True))
    return {
        "cost": cost,
        "quality": sent / max(strongest, 1e-12),
        "gain_over_domains": 100 * (sent - drawn.domains_best),
        "cost_at_98": least_cost([*ways, (cost, sent)], ENOUGH * strongest),
        "lottery_cost_at_98": least_cost(ways, ENOUGH * strongest),
        "agreed": drawn.agreed,
        "asked": drawn.asked,
        "utility": 100 * float(net.min()),
    }


def _mean(values: Float | npt.NDArray[np.bool_], weight: Float) -> float:
    total = float(weight.sum())
    return float((values * weight).sum()) / total if total else 0.0
