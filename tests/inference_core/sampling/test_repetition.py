"""Looping answers are detected, and ended if the operator sets `repetition_guard`."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from inference_core.engine.core import Core
from inference_core.engine.requests import is_looping
from inference_core.errors import InvalidRequestError
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence
from tests.inference_core.hash_model import HashModelRunner, hash_core

LONG = SamplingParams(temperature=0, max_tokens=200)


@given(phrase=st.lists(st.integers(0, 3), min_size=1, max_size=10), before=st.lists(st.integers(0, 3), max_size=20))
def test_four_times_the_same_phrase_is_a_circle_whatever_stood_before(phrase: list[int], before: list[int]) -> None:
    assert is_looping(before + phrase * 4, 4 * len(phrase))


@pytest.mark.parametrize(
    "tokens",
    [
        list(range(40)),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 2,
        [7] * 39 + [8],  # over before the end
        [token for line in range(12) for token in (1, 2, 3, line + 10, 4, 5, 6, line * 7 % 12 + 30)],  # a table
    ],
)
def test_what_repeats_little_or_no_longer_is_no_circle(tokens: list[int]) -> None:
    assert not is_looping(tokens, len(tokens))


@given(words=st.lists(st.integers(50, 90), min_size=8, max_size=8))
def test_a_phrase_that_comes_back_with_another_word_each_time_is_a_circle(words: list[int]) -> None:
    tokens = [token for word in words for token in (*range(12), word, *range(12, 24))]
    assert is_looping(tokens + list(range(9)), 200)


class CirclingRunner(HashModelRunner):
    """Says 1 to 5 over and over after its 30th token."""

    most_decode_steps = 16

    def _sample(self, sequence: ScheduledSequence, spec: SampleSpec, *rest: Any) -> SampledToken:
        if spec.position >= 30:
            return SampledToken(spec.position % 5 + 1)
        return super()._sample(sequence, spec, *rest)


def circling_core(decode_steps: int = 1) -> Core:
    memory = bytearray(64 * 4096)
    core = Core({"m": CirclingRunner("m", memory, 4096)}, arena_bytes=len(memory), slab_bytes=4096, seed=0)
    core.set_knobs({"repetition_guard": 40, "decode_steps": decode_steps, "itl_objective_ms": 60_000})
    return core


def answer(core: Core, sampling: SamplingParams = LONG, n: int = 1) -> list[SequenceOutput]:
    core.add(AddRequest(request_id="r", model="m", prompt_token_ids=[1, 2, 3], sampling=sampling, n=n))
    last = {}
    while core.has_work:
        for output in core.step():
            assert output.index not in last
            if output.finish_reason is not None:
                last[output.index] = output
        core.check_integrity()
    return [last[index] for index in sorted(last)]


def test_a_looping_answer_ends_soon_after_the_guards_length() -> None:
    core = circling_core()
    ended = answer(core, n=3)
    assert [output.finish_reason for output in ended] == ["length"] * 3
    assert all(40 <= output.completion_tokens < 70 + 16 for output in ended)
    assert core.stats().models[0].repetitions_ended == 3


def test_a_looping_answer_has_as_many_tokens_however_many_steps_are_taken_at_once() -> None:
    said: list[list[int]] = []
    for steps in (1, 7):
        core = circling_core(steps)
        core.add(AddRequest(request_id="r", model="m", prompt_token_ids=[1, 2, 3], sampling=LONG))
        outputs = [output for _ in range(200) if core.has_work for output in core.step()]
        core.check_integrity()
        said.append([token for output in outputs for token in output.token_ids])
        assert outputs[-1].completion_tokens == len(said[-1])
        assert max(len(output.token_ids) for output in outputs) == steps

    assert said[1] == said[0]


@pytest.mark.parametrize("changes", [{"ignore_eos": True}, {"min_tokens": 200}], ids=["any length", "a least length"])
def test_who_wants_a_length_gets_it(changes: dict[str, object]) -> None:
    (ended,) = answer(circling_core(), msgspec.structs.replace(LONG, **changes))
    assert ended.completion_tokens == 200


def test_the_guard_is_off_unless_it_is_switched_on_and_can_be_switched_while_an_answer_runs() -> None:
    core = circling_core()
    core.set_knobs({"repetition_guard": None})
    core.add(AddRequest(request_id="r", model="m", prompt_token_ids=[1], sampling=LONG))
    outputs = [output for _ in range(150) for output in core.step()]
    assert len(outputs) == 150
    core.set_knobs({"repetition_guard": 40})
    while core.has_work:
        outputs += core.step()
    assert outputs[-1].finish_reason == "length"
    assert outputs[-1].completion_tokens < 170


def test_a_guard_of_fewer_than_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="repetition_guard"):
        hash_core("m").set_knobs({"repetition_guard": -1})
