"""The exact McNemar test: whether one of two answerers of the same tasks is right more often."""

from math import comb


def better_p_value(gains: int, losses: int) -> float:
    """One-sided p-value of "not better": P(X >= gains) for X ~ Binomial(gains + losses, 1/2) (McNemar 1947).

    `gains` are tasks that only the first got right, `losses` tasks that only the second did; tasks on which both agree
    say nothing about the difference. 1.0 without either. Computed in whole numbers, so no approximation is involved.
    Raises ValueError for a negative count.
    """
    if gains < 0 or losses < 0:
        raise ValueError(f"gains is {gains} and losses is {losses}; neither may be negative")
    discordant = gains + losses
    favourable = sum(comb(discordant, k) for k in range(gains, discordant + 1))
    return favourable / (1 << discordant)
