"""Detects answers that repeat themselves in a loop."""

import collections.abc

# Tokens between two checks of an answer.
LOOK_EVERY = 16
# The length of the compared runs: longer than what tables, lists and code repeat in every line.
RUN = 8
# The highest share of distinct runs in a loop. Prose has 0.98, code and records 0.7 to 0.9, a nursery rhyme with
# refrains 0.6; loops fall below 0.35, even those that change a word each time.
DIFFERENT = 0.4


def is_looping(token_ids: collections.abc.Sequence[int], span: int) -> bool:
    """Whether the last `span` tokens are a continuing loop: their last run occurred in them before, and at most the
    share `DIFFERENT` of their runs of `RUN` tokens are distinct.

    Greedy and cold sampling fall into such loops (Holtzman et al. 2020); counting different n-grams is how repetition
    is measured there and in Welleck et al. 2020, and unlike a search for a period it finds loops that vary.
    """
    tail = list(token_ids[-span:])
    if len(tail) < span:
        return False
    run = max(1, min(RUN, span // 4))
    runs = list(zip(*(tail[begin:] for begin in range(run)), strict=False))
    return runs[-1] in runs[:-1] and len(set(runs)) <= DIFFERENT * len(runs)
