"""What deciding by one estimate is worth against deciding by another, from labels of some of the tiers.

The cheapest tier with P(as good) of at least the target t answers, else the strongest. So P decides of each tier whether
it is good enough. If it is taken for that, its answer is worth y - t more than what would have to be as good as the
strongest's to be worth its price: y says whether it is as good, and t is the exchange rate between the two that the
operator has chosen. Savings are proportional to 1 - c, c being its predicted cost relative to the strongest's. So the
utility of a decision is (1 - c) (y - t) if the tier is taken and 0 if not. For two tiers that is the utility of routing.

Requests may name targets of their own, and prices differ by the length of answers: the utility is the mean over targets
from low = t - `SPREAD` to high = t + `SPREAD`. With q, which is P clipped to these, it is (1 - c) / (high - low) times
(y^2 - (q - y)^2 - (low^2 - 2 low y)) / 2: a gain is that of squared error (Brier 1950) near the target. What moves P
elsewhere moves no decision.

A decision on a tier needs the label of this tier alone. So prompts of which some tiers are labelled are compared
directly, without estimates of what is not known. Each label counts with its weight, as in the squared error: of prompts
that are labelled seldom the mean says as little as that does.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.policy.utility import reference_prices
from classifier.training.metrics.estimates import Estimate

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]

# Chosen on labels of the split train of recorded ladders: from 0 on it loses noise faster than what it looks for.
SPREAD = 0.1
# An interval needs so many groups of related prompts on which the decisions differ.
LEAST_DIFFERENT = 10
# Half width of a 95% interval in standard errors.
TWO_SIDED = 1.96


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
    """One estimate against another, means with 95% intervals: `error`, the reduction of squared error; `utility` of its
    decisions; `different`: groups of related prompts on which decisions differ."""

    error: Estimate
    utility: Estimate
    different: int

    @property
    def is_better(self) -> bool:
        """Whether it is certainly better by its utility or its squared error, and certainly worse by neither. Each has
        half of the 5% of false claims."""
        certain = self.utility.low > 0 and self.different >= LEAST_DIFFERENT
        return (certain or self.error.low > 0) and self.utility.high >= 0 and self.error.high >= 0


def utility_gains(scores: Float, before: Float, after: Float, serving: Serving) -> Float64:
    """Return [n, tiers - 1]: the utility of deciding by `after` less that of deciding by `before`, P(as good) [n,
    tiers - 1] without the prompt's own label, where the outcomes are `scores`; 0 where these are NaN."""
    low, high = max(serving.target - SPREAD, 0.0), min(serving.target + SPREAD, 1.0)
    known = np.nan_to_num(scores).astype(np.float64)
    theirs, ours = ((np.clip(p, low, high).astype(np.float64) - known) ** 2 for p in (before, after))
    gains = (1 - np.array(serving.cost_shares[:-1])) * (theirs - ours) / (2 * (high - low))
    return np.where(np.isnan(scores), 0.0, gains)


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
