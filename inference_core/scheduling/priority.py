"""Who is served first and who gives way: the two orders behind every decision of the scheduler.

Both are total (they end in the sequence's unique number), so nothing depends on chance or on how Python
compares requests. Why nobody starves and nothing livelocks:

- *Service* goes by (class after ageing, deadline, arrival, number). Lagging for `ageing_seconds` lifts a sequence one
  class, without a floor, so only finitely many later arrivals can ever be served before it.
- *Giving way* (preemption) goes by (held class, tokens computed, number), worst first. The best holder is never
  preempted, and what it needs is freed by the others, so it always advances.
- A waiting sequence pushes out only holders of a class strictly worse than its own priority *without* ageing. After
  an exchange the reverse one is therefore impossible: a chain of exchanges climbs the classes and ends.
"""

from inference_core.scheduling.sequence import Sequence

ServiceOrder = tuple[int, float, float, int]
Rank = tuple[int, int, int]


def waited_seconds(sequence: Sequence, now: float) -> float:
    """Seconds spent waiting or catching up so far."""
    if sequence.waiting_since is None:
        return sequence.waited_seconds
    return sequence.waited_seconds + now - sequence.waiting_since


def aged_class(sequence: Sequence, now: float, ageing_seconds: float) -> int:
    """The priority class lifted by one for every `ageing_seconds` spent waiting or catching up."""
    return sequence.priority - int(waited_seconds(sequence, now) / ageing_seconds)


def seconds_to_next_lift(sequence: Sequence, now: float, ageing_seconds: float) -> float:
    """How long a prefilling sequence keeps its present `aged_class`."""
    lagged = waited_seconds(sequence, now)
    return (int(lagged / ageing_seconds) + 1) * ageing_seconds - lagged


def service_order(sequence: Sequence, now: float, ageing_seconds: float) -> ServiceOrder:
    """Smaller is served first."""
    return (aged_class(sequence, now, ageing_seconds), sequence.deadline, sequence.arrival, sequence.number)


def holding_rank(sequence: Sequence) -> Rank:
    """Greater gives way first: the worst class, then the least computed, then the newest."""
    return (sequence.held_class, -sequence.num_computed_tokens, sequence.number)


def newcomer_claim(sequence: Sequence) -> Rank:
    """The rank that a waiting sequence may push out only those beyond: the end of its own class."""
    return (sequence.priority, 1, 0)
