"""What is true in the laboratory, and what is measured against it; nothing of this reaches the loop but verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """Recorded outcomes of n prompts: `right` bool [n, tiers], whether each tier's answer scored at least 0.5."""

    right: Bool

    @property
    def no_worse(self) -> Bool:
        """[n, tiers]: right, or the strongest tier was wrong as well; the strongest is no worse than itself."""
        better: Bool = self.right | ~self.right[:, -1:]
        return better

    def degraded(self, tier: int, share: float, rng: np.random.Generator) -> "Truth":
        """The same with a `share` of `tier`'s right answers turned wrong, the same prompts every time they come."""
        right = self.right.copy()
        right[:, tier - 1] &= rng.random(len(right)) >= share
        return Truth(right)


def quality(no_worse: Bool, served: Float) -> float:
    """Share of served requests that were no worse than the strongest tier's; `served` [n, tiers] counts or weights."""
    return float((no_worse * served).sum() / served.sum())


def cost(served: Float, prices: Sequence[float]) -> float:
    """Mean price of a request, in units of tier 1's."""
    return float((served * np.asarray(prices)).sum() / served.sum())


def utility(no_worse: Bool, served: Float, prices: Sequence[float], lambda_ref: float) -> float:
    """Quality minus `lambda_ref` times the cost per request over the strongest tier's price."""
    return quality(no_worse, served) - lambda_ref * cost(served, prices) / prices[-1]


def gap_closed(after: float, frozen: float, oracle: float) -> float | None:
    """The share of the oracle's gain in quality over the frozen router that was reached; None where it has no gain."""
    return (after - frozen) / (oracle - frozen) if oracle > frozen else None


def choices(tiers: npt.NDArray[np.intp], weights: Float, count: int) -> Float:
    """What is served [n, count] when prompt i, with `weights[i]`, always gets column `tiers[i]`."""
    served: Float = np.eye(count)[tiers] * weights[:, None]
    return served
