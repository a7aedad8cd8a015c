"""Evidence that may be looked at at any time: wealth from betting on bounded differences.

Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting", 2024). If the mean of each gain,
given those before it, is at most 0, the wealth of whoever bets on gains is a nonnegative supermartingale that begins at
1, so that it ever reaches 1/a with probability a at most (Ville): however often one looks, and whenever one stops.
"""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

# Parts of the most that may be bet. Wealth is the mean over all, so that none costs more than a factor of six.
BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def wealth(gains: Float, most_lost: float) -> Float:
    """[n] the wealth after each of `gains` [n], none below `-most_lost`.

    Raises `ValueError` for a gain that is below it: the bound must be known beforehand.
    """
    if len(gains) and float(gains.min()) < -most_lost - 1e-9:
        raise ValueError(f"a gain of {float(gains.min())} is below the least possible, {-most_lost}")
    bets = np.array(BETS)[:, None] / most_lost
    # Beyond e^500 nothing changes any more, and nothing overflows.
    after: Float = np.exp(np.minimum(np.cumsum(np.log1p(bets * gains[None, :]), axis=1), 500.0)).mean(axis=0)
    return after


def evidence(gains: Float, most_lost: float) -> float:
    """The greatest wealth so far: against the hypothesis that `gains` are 0 or less on average; at least 1."""
    return max(1.0, float(wealth(gains, most_lost).max(initial=1.0)))
