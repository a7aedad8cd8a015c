"""What choosing tiers by one estimate is worth against choosing by another, from labels of some of the tiers.

A request's utility at tier k is y - (1 - t) c: y says whether the answer is as good as the strongest tier's, c is the
cost relative to that tier's, t the quality target. So the strongest is worth t, and the rule that serves (the cheapest
tier with P(as good) of at least t) maximises what is expected of a free tier and the strongest. Requests may name
targets of their own, and prices differ by the length of answers: the utility is the mean over targets near the one that
serves. Over all targets from 0 to 1 the gain would be, for a free tier, half of the reduction of squared error (Brier
1950), most of which moves no decision.

Labels tell of some tiers. y of tier k is estimated doubly robustly (Robins, Rotnitzky and Zhao 1994; for decisions
Dudik, Langford and Li 2011) as m + w (y - m) / e: m is P by the estimate before, out of fold, w the label's weight, 0
without one, and e the mean of w among prompts of its class. Where every tier is labelled that is the outcome. It is
unbiased if the class alone says which tiers were labelled, or if m is right.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.local.labels import Labels
from classifier.policy.utility import cheapest_reaching, reference_prices
from classifier.training.metrics.estimates import Estimate

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]

# Targets from so much below the one that serves to so much above it, and how many of them.
SPREAD, TARGETS = 0.1, 9
# An interval needs so many groups of related prompts that the two estimates give to different tiers.
LEAST_DIFFERENT = 10
# Half width of a 95% interval in standard errors.
TWO_SIDED = 1.96
# Labels of the mean weight over all classes that the mean of one begins with; and the least mean.
_N0, _LEAST_TOLD = 20.0, 0.02


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How a catalogue serves: `target`, the least P(as good) of the tier that answers; `cost_shares` [tiers], what a
    request is predicted to cost at each tier, relative to the strongest's."""

    target: float = DEFAULT_TARGET
    cost_shares: list[float]


def reference_serving(tiers: int) -> Serving:
    """Return the default target at the reference prices of so many tiers."""
    prices = reference_prices(tiers)
    return Serving(cost_shares=(prices / prices[-1]).tolist())


class Compared(NamedTuple):
    """One estimate against another, means with 95% intervals: `error`, the reduction of squared error; `utility` of the
    tiers that it chooses; `different`: groups of related prompts in which it chooses otherwise."""

    error: Estimate
    utility: Estimate
    different: int

    @property
    def is_better(self) -> bool:
        """Whether it is certainly better by its utility or its squared error, and certainly worse by neither. Each has
        half of the 5% of false claims."""
        certain = self.utility.low > 0 and self.different >= LEAST_DIFFERENT
        return (certain or self.error.low > 0) and self.utility.high >= 0 and self.error.high >= 0


def utility_gains(labels: Labels, before: Float, after: Float, serving: Serving) -> Float64:
    """Return [n]: the utility of choosing by `after` less that of choosing by `before`, P(as good) [n, tiers - 1] of
    the labels' prompts without themselves."""
    strongest = np.ones((len(labels), 1))
    good = np.hstack([expected_outcomes(labels, before), strongest])
    by = [np.hstack([np.asarray(p, np.float64), strongest]) for p in (before, after)]
    rows, costs = np.arange(len(labels)), np.array(serving.cost_shares)
    gains = np.zeros(len(labels))
    targets = np.clip(np.linspace(serving.target - SPREAD, serving.target + SPREAD, TARGETS), 0.0, 1.0)
    for target in targets:
        theirs, ours = (cheapest_reaching(p, target) for p in by)
        gains += good[rows, ours] - good[rows, theirs] - (1 - target) * (costs[ours] - costs[theirs])
    return gains / len(targets)


def expected_outcomes(labels: Labels, expected: Float) -> Float64:
    """Return [n, tiers - 1]: each outcome, estimated doubly robustly from its label, if there is one, and what was
    `expected` [n, tiers - 1] of it."""
    told = labels.told.astype(np.float64)
    likeliest = labels.classes.argmax(axis=1)
    rate = np.empty_like(told)
    for one in np.unique(likeliest):
        mine = likeliest == one
        rate[mine] = (told[mine].sum(axis=0) + _N0 * told.mean(axis=0)) / (mine.sum() + _N0)
    missed = np.where(told > 0, np.nan_to_num(labels.scores) - expected, 0.0)
    found: Float64 = expected + told / np.maximum(rate, _LEAST_TOLD) * missed
    return found


def mean_gain(gains: Float, weights: Float, groups: Numbers) -> Estimate:
    """Return the mean of `gains` [n] with `weights` [n]; prompts of one of `groups` [n] are related, and vary
    together."""
    weights = weights.astype(np.float64)
    whole = max(float(weights.sum()), 1e-9)
    value = float(weights @ gains) / whole
    missed = np.bincount(groups, weights * (gains - value), minlength=1)
    error = float(np.sqrt(np.square(missed).sum())) / whole
    return Estimate(*(round(value + z * error, 6) for z in (0.0, -TWO_SIDED, TWO_SIDED)))


def different_groups(gains: Float, groups: Numbers) -> int:
    """Return in how many of `groups` [n] some of `gains` [n] is not 0."""
    return len(np.unique(groups[gains != 0]))
