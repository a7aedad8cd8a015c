"""Whether an answer is in a loop: its last tokens say again and again what they have said already."""

from collections.abc import Sequence

# How many tokens an answer grows by between two looks.
LOOK_EVERY = 16
# Runs of so many tokens are compared: longer than what tables, lists and code repeat in every line.
RUN = 8
# Of all runs, the share that is different in text that goes on. Prose has 0.98, code and records 0.7 to 0.9, a nursery
# rhyme with its refrains 0.6; loops fall below 0.35, also those that change a word each time.
DIFFERENT = 0.4


def goes_round(token_ids: Sequence[int], span: int) -> bool:
    """Whether the last `span` tokens are a loop that still goes on: their last run stood there before, and of all their
    runs of `RUN` tokens at most `DIFFERENT` are different.

    Greedy and cold sampling fall into such loops (Holtzman et al. 2020); counting different n-grams is how repetition
    is measured there and in Welleck et al. 2020, and unlike a search for a period it finds loops that vary.
    """
    tail = list(token_ids[-span:])
    if len(tail) < span:
        return False
    run = max(1, min(RUN, span // 4))
    runs = list(zip(*(tail[begin:] for begin in range(run)), strict=False))
    return runs[-1] in runs[:-1] and len(set(runs)) <= DIFFERENT * len(runs)
