"""Service order and preemption order: the two orders behind every decision of the scheduler.

Both are total (they end in the sequence's unique number), so the result is deterministic. Why there is neither
starvation nor livelock:

- *Service* orders by (class after ageing, deadline, prompt tokens left, arrival, number): the shortest remaining prompt
  first, which gives the least mean time to the first token (Schrage 1968). Waiting or prefilling for `ageing_seconds`
  lifts a sequence by one class, without a floor, so only finitely many later arrivals can be served before it.
- *Preemption* orders by (held class, tokens computed, number), worst first. The best holder is never preempted, and
  the others free the memory that it needs, so it always advances.
- A waiting sequence preempts only holders of a class strictly worse than its own priority *without* ageing. The
  reverse preemption is then impossible, so a chain of preemptions climbs the classes and ends.

Classes beyond `LAST_CLASS` are idle work: it runs only while no model of the core has other work. A step is planned
without it as soon as there is some; then it waits, and ages as all do, so that a core that is never idle gets to it
after `sequence.IDLE_LIFTS` lifts.
"""

from inference_core.scheduling.sequence import Sequence

ServiceOrder = tuple[int, float, int, float, int]
Rank = tuple[int, int, int]


def waited_seconds(sequence: Sequence, now: float) -> float:
    """Seconds spent waiting or prefilling so far."""
    if sequence.waiting_since is None:
        return sequence.waited_seconds
    return sequence.waited_seconds + now - sequence.waiting_since


def aged_class(sequence: Sequence, now: float, ageing_seconds: float) -> int:
    """The priority class lifted by one for every `ageing_seconds` spent waiting or prefilling."""
    return sequence.priority - int(waited_seconds(sequence, now) / ageing_seconds)


def seconds_to_next_lift(sequence: Sequence, now: float, ageing_seconds: float) -> float:
    """Seconds until ageing changes the `aged_class` of a waiting or prefilling sequence."""
    waited = waited_seconds(sequence, now)
    return (int(waited / ageing_seconds) + 1) * ageing_seconds - waited


def service_order(sequence: Sequence, now: float, ageing_seconds: float) -> ServiceOrder:
    """Smaller is served first."""
    level = aged_class(sequence, now, ageing_seconds)
    return (level, sequence.deadline, sequence.num_prefill_tokens, sequence.arrival, sequence.number)


def arrival_order(sequence: Sequence, now: float, ageing_seconds: float) -> tuple[int, float, float, int]:
    """`service_order` without lengths: tokens of different models do not compare."""
    return (aged_class(sequence, now, ageing_seconds), sequence.deadline, sequence.arrival, sequence.number)


def holding_rank(sequence: Sequence) -> Rank:
    """Greater is preempted first: the worst class, then the least computed, then the newest."""
    return (sequence.held_class, -sequence.num_computed_tokens, sequence.number)


def newcomer_claim(sequence: Sequence) -> Rank:
    """The end of the sequence's own class: it may preempt only holders of a greater rank."""
    return (sequence.priority, 1, 0)
