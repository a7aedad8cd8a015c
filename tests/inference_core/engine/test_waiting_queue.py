"""The queue is always in service order, however it was filled and whatever time has done to it (SPEC BS-05)."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_core.engine.queues import WaitingQueue, service_order
from inference_core.engine.sequence import Sequence
from inference_core.protocol import AddRequest, SamplingParams
from tests.examples import examples

# Quarters of seconds add up exactly, so that classes change at the same instant however they are computed.
quarters = st.integers(0, 20).map(lambda n: n / 4)
ageing = st.sampled_from([0.5, 1.0, 4.0])


class QueueMachine(RuleBasedStateMachine):
    """A queue and, as its oracle, a plain list that is sorted each time."""

    @initialize(ageing_seconds=ageing)
    def start(self, ageing_seconds: float) -> None:
        self.ageing = ageing_seconds
        self.queue = WaitingQueue(ageing_seconds)
        self.waiting: list[Sequence] = []
        self.now = 0.0
        self.numbers = 0

    @rule(priority=st.integers(0, 2), due=st.none() | quarters, arrival=quarters, lagged=quarters)
    def push(self, priority: int, due: float | None, arrival: float, lagged: float) -> None:
        request = AddRequest(
            request_id=str(self.numbers),
            model="m",
            prompt_token_ids=[1],
            sampling=SamplingParams(),
            priority=priority,
            deadline=due,
            arrival=arrival,
        )
        sequence = Sequence.of_request(
            request,
            0,
            number=self.numbers,
            request_seed=0,
            eos_token_ids=(),
            max_context=9,
            leader=None,
            now=self.now,
        )
        sequence.precedence.waited_seconds = lagged
        self.numbers += 1
        self.queue.push(sequence, self.now)
        self.waiting.append(sequence)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def remove(self, which: int) -> None:
        self.queue.remove(self.waiting.pop(which % len(self.waiting)))

    @rule(seconds=quarters)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(ageing_seconds=ageing)
    def age_faster_or_slower(self, ageing_seconds: float) -> None:
        self.ageing = ageing_seconds

    @invariant()
    def order_is_service_order(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.lift(self.now, self.ageing)
        self.queue.check_integrity()
        assert list(self.queue.values()) == self.waiting
        expected = sorted(self.waiting, key=lambda s: service_order(s, self.now, self.ageing))
        assert [entry[-1].precedence.number for entry in self.queue.entries()] == [
            s.precedence.number for s in expected
        ]
        assert self.queue.best_priority == min((s.precedence.priority for s in self.waiting), default=None)


class TestQueueUnderRandomUse(QueueMachine.TestCase):
    """After pushes, removals and ageing, the order equals a sort."""

    settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
