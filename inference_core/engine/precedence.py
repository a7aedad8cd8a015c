"""What decides which of two sequences goes first: in the queue, among the models of a core, and for memory."""

import math
from dataclasses import dataclass
from typing import Self

from inference_core.protocol import LAST_CLASS, AddRequest

IDLE_LIFTS = 12
"""So many lifts by ageing make idle work a part of the last class."""
IDLE_CLASS = LAST_CLASS + IDLE_LIFTS

Rank = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Precedence:
    """The rights of a sequence, and what it has waited. Waiting and prefilling age it, decoding does not."""

    number: int
    """Unique in the core; it breaks every tie."""
    priority: int
    deadline: float
    arrival: float
    waiting_since: float | None
    """When the sequence last began to wait; None while it decodes."""
    waited_seconds: float = 0.0
    """Sum of earlier waits."""
    held_class: int = 0
    """Priority class of the last admission, after ageing."""
    last_step: int = -1

    @classmethod
    def of_request(cls, request: AddRequest, number: int, now: float) -> Self:
        return cls(
            number,
            IDLE_CLASS if request.idle else request.priority,
            math.inf if request.deadline is None else request.deadline,
            request.arrival or now,
            waiting_since=now,
        )

    @property
    def is_idle_work(self) -> bool:
        """Whether the sequence has no caller (`AddRequest.idle`), so that it is no part of the load."""
        return self.priority > LAST_CLASS

    def begin_wait(self, now: float) -> None:
        """Wait from `now` on, or go on waiting for the prompt."""
        if self.waiting_since is None:
            self.waiting_since = now

    def start_decoding(self, now: float) -> None:
        """End the wait for the prompt."""
        assert self.waiting_since is not None
        self.waited_seconds += now - self.waiting_since
        self.waiting_since = None

    def waited(self, now: float) -> float:
        """Seconds spent waiting or prefilling so far."""
        if self.waiting_since is None:
            return self.waited_seconds
        return self.waited_seconds + now - self.waiting_since

    def aged_class(self, now: float, ageing_seconds: float) -> int:
        """The priority class lifted by one for every `ageing_seconds` spent waiting or prefilling."""
        return self.priority - int(self.waited(now) / ageing_seconds)

    def seconds_to_next_lift(self, now: float, ageing_seconds: float) -> float:
        """Seconds until ageing changes the `aged_class` of a waiting or prefilling sequence."""
        waited = self.waited(now)
        return (int(waited / ageing_seconds) + 1) * ageing_seconds - waited

    def arrival_order(self, now: float, ageing_seconds: float) -> tuple[int, float, float, int]:
        """`queues.service_order` without lengths: tokens of different models do not compare."""
        return (self.aged_class(now, ageing_seconds), self.deadline, self.arrival, self.number)

    @property
    def newcomer_claim(self) -> Rank:
        """The end of the sequence's own class: it may preempt only holders of a greater rank."""
        return (self.priority, 1, 0)
