"""How many examples a property test draws: its own number by default, more or fewer as the profile says."""

from hypothesis import settings

USUAL = 100


def examples(usual: int) -> int:
    """Scale `usual` with the profile's examples, of which Hypothesis draws a hundred by default; at least five."""
    return max(min(usual, 5), usual * settings().max_examples // USUAL)
