"""Whether an answer goes round in circles: its last tokens are one phrase, over and over."""

from collections.abc import Sequence

# How many tokens an answer grows by between two looks, and how often at least the phrase stands there.
LOOK_EVERY = 16
TIMES = 4


def goes_round(token_ids: Sequence[int], span: int) -> bool:
    """Whether the last `span` tokens are periodic, with a period of at most a quarter of them (Holtzman et al. 2020
    show such loops of greedy decoding; vLLM ends answers by the same sign).
    """
    tail = token_ids[-span:]
    if len(tail) < span:
        return False
    last = tail[-1]
    return any(tail[-1 - period] == last and tail[period:] == tail[:-period] for period in range(1, span // TIMES + 1))
