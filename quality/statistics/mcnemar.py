"""The exact McNemar test: is one of two systems right more often on the same tasks?"""

from math import comb


def better_p_value(gains: int, losses: int) -> float:
    """Return the one-sided p-value of "not better": P(X >= gains) for X ~ Binomial(gains + losses, 1/2) (McNemar 1947).

    `gains` are tasks that only the first got right, `losses` tasks that only the second did; tasks with equal results
    carry no information. 1.0 without either. Computed exactly in integers. Raises ValueError for a negative count.
    """
    if gains < 0 or losses < 0:
        raise ValueError(f"gains is {gains} and losses is {losses}; neither may be negative")
    discordant = gains + losses
    favourable = sum(comb(discordant, k) for k in range(gains, discordant + 1))
    return favourable / (1 << discordant)
