"""What a routing of recorded prompts costs and is worth, with intervals bootstrapped over the prompts."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.replay.ladder import Ladder
from classifier.policy.utility import DEFAULT_EXCHANGE

Float = npt.NDArray[np.float64]
Tiers = npt.NDArray[np.intp]

RESAMPLES = 2000


class Figure(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"

    @property
    def gained(self) -> str:
        """In words, of a gain."""
        return f"by {self.value:+.1%} [{self.low:+.1%}, {self.high:+.1%}]"


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """A routing by the marks. `cost`: share of what the strongest tier alone costs. `quality`: share of answers no
    worse than its own. `mark`: their mean mark. `utility`: quality less 0.3 of the cost, by which the default setting
    decides. `saving`: share of the saving of an oracle, which takes the cheapest answer that is no worse; above 1,
    worse answers were taken."""

    name: str
    cost: Figure
    quality: Figure
    mark: Figure
    utility: Figure
    saving: float


def chosen(tiers: Tiers, count: int) -> Float:
    """[n, count] of one-hot rows: each prompt answered by its tier, 1 to `count`."""
    rows: Float = np.eye(count)[tiers - 1]
    return rows


def oracle(ladder: Ladder) -> Float:
    """The cheapest answer that is no worse, by the marks."""
    return chosen(np.argmax(ladder.no_worse, axis=1) + 1, len(ladder.tiers))


def worth(name: str, ladder: Ladder, served: Float) -> Worth:
    """Of `served` [n, tiers]: how likely each tier is to answer each prompt."""
    weights = _resamples(len(served))
    paid, dearest = (served * ladder.costs).sum(axis=1), ladder.costs[:, -1]
    quality = (served * ladder.no_worse).sum(axis=1)
    least = float((oracle(ladder) * ladder.costs).sum())
    whole = float(dearest.sum())
    return Worth(
        name=name,
        cost=_figure((weights @ paid) / (weights @ dearest)),
        quality=_figure(weights @ quality),
        mark=_figure(weights @ (served * ladder.marks).sum(axis=1)),
        utility=_figure(weights @ quality - DEFAULT_EXCHANGE * (weights @ paid) / (weights @ dearest)),
        saving=(whole - float(paid.sum())) / max(whole - least, 1e-12),
    )


def gain(ladder: Ladder, ours: Float, theirs: Float) -> Figure:
    """Utility of one routing less that of another on the same prompts, paired."""
    weights = _resamples(len(ours))
    quality = weights @ ((ours - theirs) * ladder.no_worse).sum(axis=1)
    cost = (weights @ ((ours - theirs) * ladder.costs).sum(axis=1)) / (weights @ ladder.costs[:, -1])
    return _figure(quality - DEFAULT_EXCHANGE * cost)


def table(ladder: Ladder, routings: Mapping[str, Float]) -> list[Worth]:
    """The worth of each, by name."""
    return [worth(name, ladder, served) for name, served in routings.items()]


def _resamples(n: int) -> Float:
    """[1 + b, n]: the rows as they are, then bootstrap weights; each row of weights adds up to 1."""
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1.0 / n), size=RESAMPLES)
    return np.vstack([np.ones((1, n)), drawn]) / n


def _figure(draws: Float) -> Figure:
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return Figure(float(draws[0]), float(low), float(high))
