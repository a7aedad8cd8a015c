"""The limits of an API key: no sliding minute has more requests or tokens than they allow."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tiers.replicas.replica import SECONDS, MinuteLimits

STEPS = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 60), st.integers(0, 60)), max_size=60)


@settings(max_examples=examples(200))
@given(steps=STEPS, requests=st.integers(1, 5), tokens=st.integers(10, 200))
def test_no_sliding_minute_is_above_its_limits(steps: list[tuple[float, int, int]], requests: int, tokens: int) -> None:
    limits, now = MinuteLimits(requests, tokens), 1000.0
    sent: list[tuple[float, int, int]] = []
    for pause, prompt, answer in steps:
        now += pause
        wait = limits.wait(now, prompt)
        if wait > 0:
            assert deepcopy(limits).wait(now + wait, prompt) <= 1e-9, "the wait that it names is enough"
            continue
        recent = [call for call in sent if call[0] > now - SECONDS]
        assert len(recent) + 1 <= requests
        assert not recent or sum(call[1] + call[2] for call in recent) + prompt <= tokens
        limits.settle(limits.add(now, prompt), prompt + answer, now)
        sent.append((now, prompt, answer))


def test_without_a_limit_nothing_waits() -> None:
    limits = MinuteLimits(None, None)
    for _ in range(1000):
        limits.add(0.0, 10**9)
    assert limits.wait(0.0, 10**9) == 0


def test_a_wait_ends_with_the_request_that_makes_room() -> None:
    limits = MinuteLimits(2, None)
    limits.add(10.0, 1)
    limits.add(30.0, 1)
    assert limits.wait(40.0, 1) == 30.0
    assert limits.wait(70.0, 1) == 0


def test_tokens_of_a_forgotten_request_are_not_counted_when_it_ends() -> None:
    limits = MinuteLimits(None, 100)
    entry = limits.add(0.0, 50)
    limits.settle(entry, 5000, 61.0)
    assert limits.wait(61.0, 100) == 0


def test_a_prompt_above_the_limit_is_sent_in_an_empty_minute() -> None:
    limits = MinuteLimits(None, 100)
    assert limits.wait(0.0, 500) == 0
    limits.add(0.0, 500)
    assert limits.wait(1.0, 1) == 59.0
