"""What deciding by one estimate is worth against deciding by another, from labels of some of the tiers.

By the objective of every decision (`classifier.policy.utility`): if y says whether an answer is as good as the
strongest tier's, c is its predicted cost relative to that, and r the exchange rate, taking the tier in place of the
strongest is worth y - t with t = 1 - r (1 - c), and leaving it 0. So P decides of each tier whether it reaches its t.
For two tiers that is the utility of routing; for more, a tier is compared with the strongest alone.

Requests may name targets of their own, and prices differ by the length of prompts and answers: the utility is the mean
over thresholds from low = t - `SPREAD` to high = t + `SPREAD`. With q, which is P clipped to these, a gain is 1 / (2
(high - low)) times the reduction of (q - y)^2: that of squared error (Brier 1950) near the threshold. What moves P
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
from classifier.decision import exchange_of
from classifier.policy.utility import reference_prices
from quality.statistics import Estimate

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]

# Chosen on labels of the split train of recorded ladders: from 0 on it loses noise faster than what it looks for.
SPREAD = 0.1
# An interval needs so many groups of related prompts on which the decisions differ.
LEAST_DIFFERENT = 10
# Of one-sided bounds of 95%, in standard errors.
_ONE_SIDED = 1.645


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How a catalogue serves."""

    target: float = DEFAULT_TARGET
    """The quality target."""
    cost_shares: list[float]
    """[tiers]: what a request is predicted to cost at each tier, relative to the strongest tier's cost."""

    @property
    def exchange(self) -> float:
        """What a strongest answer is worth, in shares of answers as good."""
        return exchange_of(self.target)

    @property
    def prices(self) -> Float64:
        return np.array(self.cost_shares, np.float64)


def reference_serving(tiers: int) -> Serving:
    """Return the default target at the reference prices of so many tiers."""
    prices = reference_prices(tiers)
    return Serving(cost_shares=(prices / prices[-1]).tolist())


class Compared(NamedTuple):
    """One estimate against another, means with bounds."""

    error: Estimate
    """The reduction of squared error."""
    utility: Estimate
    """The gain in utility of its decisions."""
    different: int
    """Groups of related prompts on which decisions differ."""

    @property
    def is_worse(self) -> bool:
        """Whether it is certainly worse by either."""
        return self.utility.high < 0 or self.error.high < 0

    @property
    def decides_better(self) -> bool:
        """Whether its decisions are certainly better, and it is certainly worse by neither."""
        return self.utility.low > 0 and self.different >= LEAST_DIFFERENT and not self.is_worse

    @property
    def improves(self) -> bool:
        """Whether its decisions differ, it is certainly better by one of both, and certainly worse by neither."""
        return self.is_better and self.different >= LEAST_DIFFERENT

    @property
    def is_better(self) -> bool:
        """Whether it is certainly better by one of both, and certainly worse by neither."""
        return self.decides_better or (self.error.low > 0 and not self.is_worse)


def utility_gains(scores: Float, before: Float, after: Float, serving: Serving) -> Float64:
    """Return [n, tiers - 1]: the utility of deciding by `after` less that of deciding by `before`, P(as good) [n,
    tiers - 1] without the prompt's own label, where the outcomes are `scores`; 0 where these are NaN."""
    at = 1 - serving.exchange * (1 - serving.prices[:-1])
    low, high = np.maximum(at - SPREAD, 0.0), np.minimum(at + SPREAD, 1.0)
    filled_scores = np.nan_to_num(scores).astype(np.float64)
    theirs, ours = ((np.clip(p, low, high).astype(np.float64) - filled_scores) ** 2 for p in (before, after))
    gains = (theirs - ours) / (2 * (high - low))
    return np.where(np.isnan(scores), 0.0, gains)


def mean_gain(gains: Float, weights: Float, groups: Numbers) -> Estimate:
    """Return the mean of `gains` [n] with `weights` [n] and its one-sided bounds of 95%; prompts of one of `groups` [n]
    are related, and vary together."""
    weights = weights.astype(np.float64)
    whole = max(float(weights.sum()), 1e-9)
    value = float(weights @ gains) / whole
    missed = np.bincount(groups, weights * (gains - value), minlength=1)
    error = float(np.sqrt(np.square(missed).sum())) / whole
    return Estimate(*(round(value + z * error, 6) for z in (0.0, -_ONE_SIDED, _ONE_SIDED)))


def different_groups(gains: Float, groups: Numbers) -> int:
    """Return in how many of `groups` [n] some of `gains` [n] is not 0."""
    return len(np.unique(groups[gains != 0]))
