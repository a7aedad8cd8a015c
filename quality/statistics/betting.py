"""Anytime-valid evidence: wealth from betting on bounded differences.

Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting", 2024). If the mean of each gain,
given those before it, is at most 0, the wealth of a bettor on gains is a nonnegative supermartingale that starts at 1,
so the probability that it ever reaches 1/a is at most a (Ville), under any monitoring and stopping rule.
"""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

# Fractions of the largest possible bet. Wealth is the mean over all, so each costs at most a factor of six.
BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def wealth(gains: Float, most_lost: float) -> Float:
    """Return the wealth [n] after each of `gains` [n], none of which may be below `-most_lost`.

    Raises `ValueError` for a lower gain: the bound must be known beforehand.
    """
    if len(gains) and float(gains.min()) < -most_lost - 1e-9:
        raise ValueError(f"a gain of {float(gains.min())} is below the least possible, {-most_lost}")
    bets = np.array(BETS)[:, None] / most_lost
    # Capped at e^500 to avoid overflow; larger values change no decision.
    after: Float = np.exp(np.minimum(np.cumsum(np.log1p(bets * gains[None, :]), axis=1), 500.0)).mean(axis=0)
    return after


def evidence(gains: Float, most_lost: float) -> float:
    """Return the greatest wealth so far, at least 1: evidence against `gains` being 0 or less on average."""
    return max(1.0, float(wealth(gains, most_lost).max(initial=1.0)))
