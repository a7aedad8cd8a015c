"""How many examples a property test draws: its own number by default, more where the profile asks for more."""

from hypothesis import settings

USUAL = 100


def examples(usual: int) -> int:
    """This many, and proportionally more if the profile asks for more than Hypothesis's default of a hundred."""
    return max(usual, usual * settings().max_examples // USUAL)
