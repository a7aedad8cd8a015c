"""The yardstick of all comparisons of routers: what an answer is worth, and what a router would choose by it."""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]

# Reference prices of the four tiers, and what a point of quality is worth in the yardstick of all comparisons.
PRICES = (1.0, 2.5, 10.0, 30.0)
COST_WEIGHT = 0.1


def reference_prices(tiers: int) -> Float:
    """Reference prices [tiers]: `PRICES` for up to four; more are spread over the same range, equal factors apart
    between each two of the four."""
    if tiers <= len(PRICES):
        return np.array(PRICES[:tiers])
    places = np.linspace(0, len(PRICES) - 1, tiers)
    spread: Float = np.exp(np.interp(places, np.arange(len(PRICES)), np.log(PRICES)))
    return spread


def cheapest_reaching(p_ok: Float, threshold: float) -> npt.NDArray[np.intp]:
    """Column [n] that `decide` picks from `p_ok` [n, tiers] without constraints."""
    reached = p_ok >= threshold
    reached[:, -1] = True
    picked: npt.NDArray[np.intp] = np.argmax(reached, axis=1)
    return picked


def highest_utility(p_ok: Float, prices: Float) -> npt.NDArray[np.intp]:
    """Column [n] with the greatest expected utility, by `p_ok` [n, tiers] at `prices` [tiers]; of equal ones the
    cheapest."""
    picked: npt.NDArray[np.intp] = utility(p_ok, prices).argmax(axis=1)
    return picked


def utility(score: Float, prices: Float) -> Float:
    """Score [n, tiers] minus the price of the tier that gave it: score - 0.1 cost / cost of the strongest."""
    net: Float = score - COST_WEIGHT * prices / prices[-1]
    return net
