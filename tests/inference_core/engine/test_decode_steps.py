"""Several decode steps in one call of the runner: the same tokens, blocks as exact, and an end at once if asked."""

import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from core_driver import CoreDriver, greedy

from inference_core.protocol import Knobs, SamplingParams
from inference_core.protocol.token_channel import TokenChannel
from inference_core.step_plan import SampledToken, ScheduledSequence, StepPlan, StepResult

# Learned step times count from here on, and bursts of eight such steps keep an eighth of this objective.
WARM = 20
KNOBS = Knobs(decode_steps=8, itl_objective_ms=1000.0)
THIRTY = greedy(30)


def warm_driver(knobs: Knobs = KNOBS, **fields: object) -> CoreDriver:
    driver = CoreDriver(knobs=knobs, **fields)
    driver.add([1], sampling=greedy(WARM))
    driver.drain()
    return driver


def decode(driver: CoreDriver, *prompts: list[int], sampling: SamplingParams = THIRTY, **fields: object) -> list[str]:
    """Add requests and take the step that computes their prompts."""
    names = [driver.add(prompt, sampling=sampling, **fields) for prompt in prompts]
    driver.step()
    return names


def lengths(driver: CoreDriver, names: list[str]) -> list[int]:
    return [len(driver.tokens[name, 0]) for name in names]


def during_the_step(driver: CoreDriver, step: int, call: Callable[[], object]) -> None:
    """Have `call` made while the given inner step of the next call of the runner is drawn."""
    runner = driver.runners["m"]
    drawn, left = runner._samples, iter(range(1, step + 1))

    def samples(sequences: list[ScheduledSequence]) -> list[list[SampledToken]]:
        if next(left, 0) == step:
            call()
        return drawn(sequences)

    runner._samples = samples


def test_while_nothing_waits_several_tokens_come_out_together():
    driver = warm_driver()
    names = decode(driver, [1, 2, 3], [4])

    driver.step()

    assert driver.last_plan().decode_steps == 8
    assert lengths(driver, names) == [9, 9]
    driver.drain()
    assert lengths(driver, names) == [30, 30]


def test_no_step_passes_the_end_of_an_answer():
    driver = warm_driver()
    short, long = decode(driver, [1, 2, 3], sampling=greedy(4))[0], driver.add([4], sampling=greedy(30))
    driver.step()

    driver.step()

    assert driver.finished[short, 0].completion_tokens == 4
    assert lengths(driver, [long]) == [3]


def test_a_stop_token_ends_the_steps_and_frees_what_was_reserved():
    driver = warm_driver()
    (answer,) = decode(driver, [1, 2, 3], sampling=greedy(30))
    driver.drain()
    third = driver.tokens[answer, 0][2]
    stopped = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=(third,))
    names = [*decode(driver, [1, 2, 3], sampling=stopped), driver.add([4], sampling=greedy(30))]
    driver.step()

    driver.step()

    assert driver.finished[names[0], 0].stop_token_id == third
    assert driver.scheduler().running.keys() == {f"{names[1]}/0"}


def test_an_interruption_ends_the_steps_after_the_token_under_way():
    driver = warm_driver()
    names = decode(driver, [1, 2, 3], [4])
    during_the_step(driver, 2, driver.core.interrupt)

    driver.step()

    assert driver.last_plan().decode_steps == 8
    assert lengths(driver, names) == [3, 3]
    driver.abort(names[0])
    assert driver.pool().num_referenced == driver.pool().blocks_for(3)
    driver.drain()
    assert lengths(driver, names[1:]) == [30]


def test_an_interruption_between_two_steps_is_not_kept():
    driver = warm_driver()
    names = decode(driver, [1, 2, 3])
    driver.core.interrupt()

    driver.step(2)

    assert lengths(driver, names) == [1 + 1 + 8]


def test_a_prompt_that_comes_is_computed_by_the_next_step():
    driver = warm_driver()
    names = decode(driver, [1, 2, 3])
    driver.step()
    names += decode(driver, [4])

    assert driver.last_plan().decode_steps == 1
    assert lengths(driver, names) == [10, 1]


def test_single_steps_while_a_request_waits_for_a_place():
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=1000.0, max_num_seqs=1))
    names = decode(driver, [4], [1, 2, 3])

    driver.step(3)

    assert lengths(driver, names) == [4, 0]


def test_single_steps_while_another_model_has_work():
    driver = CoreDriver({"m": 1, "n": 1}, knobs=KNOBS)
    for model in "mn":
        driver.add([1], model, greedy(WARM))
    driver.drain()
    driver.add([1, 2, 3], "m", greedy(30))
    driver.add([1, 2, 3], "n", greedy(30))
    driver.step(6)

    assert [driver.last_plan(model).decode_steps for model in "mn"] == [1, 1]


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(decode_steps=1, itl_objective_ms=1000.0),
        Knobs(decode_steps=8, itl_objective_ms=100.0),
        Knobs(decode_steps=8, itl_objective_ms=1000.0, speculation="prompt_lookup", draft_control="fixed"),
    ],
    ids=["off", "objective", "drafts"],
)
def test_single_steps_where_several_are_off_or_late_or_tokens_are_drafted(knobs: Knobs) -> None:
    driver = warm_driver(knobs)
    decode(driver, [1, 2, 3])

    driver.step()

    assert driver.last_plan().decode_steps == 1


def test_several_steps_while_drafts_are_on_and_none_is_worth_making():
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=1000.0, speculation="prompt_lookup"))
    names = decode(driver, [1, 2, 3])

    driver.step()

    assert driver.last_plan().decode_steps == 8
    assert lengths(driver, names) == [9]


def test_as_many_steps_as_keep_an_eighth_of_the_objective():
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=300.0))
    decode(driver, [1, 2, 3])

    driver.step()

    assert driver.last_plan().decode_steps == 3


class OneChannel:
    """Every request's tokens may leave by one channel, but for those that are `refused`."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        with socket.socket(socket.AF_UNIX) as end:
            self._channel = TokenChannel(end.fileno())

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        return None if request_id in self._refused else (self._channel, request_id)


@pytest.mark.parametrize(("refused", "steps"), [((), 5), (("r2",), 1)], ids=["all", "some"])
def test_steps_whose_tokens_all_leave_one_by_one_may_take_the_whole_objective(
    refused: tuple[str, ...], steps: int
) -> None:
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=55.0))
    driver.core.set_routes(OneChannel(*refused))
    decode(driver, [1, 2, 3], [4])

    driver.step()

    assert driver.last_plan().decode_steps == steps


def test_tokens_leave_one_by_one_up_to_where_the_guard_looks_at_an_answer() -> None:
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=1000.0, repetition_guard=20))
    driver.core.set_routes(OneChannel())
    decode(driver, [1, 2, 3], sampling=SamplingParams(temperature=0, max_tokens=60, min_tokens=60))
    plans = []
    while driver.core.has_work:
        driver.step()
        plans.append(driver.last_plan())

    # min_tokens puts the first look off to the 64th token, which the answer does not reach.
    assert [plan.decode_steps for plan in plans] == [8] * 7 + [3]
    assert all(plan.channels for plan in plans)

    plans.clear()
    decode(driver, [5, 2, 3], sampling=SamplingParams(temperature=0, max_tokens=60))
    while driver.core.has_work and len(plans) < 8:
        driver.step()
        plans.append(driver.last_plan())

    # Looks follow the 32nd and the 48th token.
    assert [plan.decode_steps for plan in plans] == [8, 8, 8, 7, 8, 8, 8, 4]
    assert all(plan.channels for plan in plans)


def test_tokens_stay_together_where_a_look_is_near() -> None:
    driver = warm_driver(Knobs(decode_steps=8, itl_objective_ms=1000.0, repetition_guard=20))
    driver.core.set_routes(OneChannel())
    first = decode(driver, [1, 2, 3], sampling=SamplingParams(temperature=0, max_tokens=60))
    while lengths(driver, first)[0] < 25:
        driver.step()
    for token in range(4):
        decode(driver, [token])
    assert lengths(driver, first) == [29]

    driver.step()

    assert lengths(driver, first) == [37]
    assert driver.last_plan().decode_steps == 8
    assert not driver.last_plan().channels


def test_tokens_that_have_left_are_counted_but_not_among_the_outputs():
    driver = warm_driver()
    decode(driver, [1, 2, 3], [4])
    before = driver.core.stats().models[0].generated_tokens
    runner = driver.runners["m"]
    run = runner.run
    runner.run = lambda plan: replace(run(plan), sent=[8, 5])

    outputs = driver.core.step()

    _, left = (share.sequence_id for share in driver.last_plan().sequences)
    assert [(f"{output.request_id}/0", len(output.token_ids)) for output in outputs] == [(left, 3)]
    assert driver.core.stats().models[0].generated_tokens - before == 16


def test_where_too_few_blocks_are_free_one_step_is_taken_and_nothing_is_preempted():
    # One slab of sixteen blocks: 14 hold the prompts, and eight tokens of each would take four more.
    driver = warm_driver(slabs=1)
    names = decode(driver, [1] * 31, [2] * 23)

    driver.step()

    assert driver.last_plan().decode_steps == 1
    assert lengths(driver, names) == [2, 2]


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [4]]], ids=["alone", "two"])
def test_steps_that_fail_are_taken_one_by_one(prompts: list[list[int]]) -> None:
    driver = warm_driver()
    names = decode(driver, *prompts)
    driver.runners["m"].fault = RuntimeError("lost")

    driver.step()

    assert lengths(driver, names) == [2 for _ in prompts]
    driver.drain()
    assert lengths(driver, names) == [30 for _ in prompts]


def test_steps_are_counted_and_timed_one_by_one():
    driver = warm_driver()
    before = driver.core.stats()
    decode(driver, [1, 2, 3])
    driver.step()

    after = driver.core.stats()

    assert after.steps - before.steps == 9
    assert sum(after.models[0].step_seconds_counts) - sum(before.models[0].step_seconds_counts) == 9
    assert after.models[0].step_seconds_mean == pytest.approx(0.01)
    assert after.models[0].generated_tokens - before.models[0].generated_tokens == 9


def test_the_same_blocks_are_cached_as_after_single_steps():
    cached = []
    for steps in (1, 8):
        driver = warm_driver(Knobs(decode_steps=steps, itl_objective_ms=1000.0))
        decode(driver, [1, 2, 3], sampling=greedy(21))
        driver.drain()
        cached.append(driver.core.stats().models[0].blocks_cached)

    assert cached[0] == cached[1]


def test_more_tokens_than_the_plan_allows_are_refused_and_the_step_is_repeated():
    driver = warm_driver()
    names = decode(driver, [1, 2, 3])
    runner = driver.runners["m"]
    run = runner.run

    def too_many(plan: StepPlan) -> StepResult:
        result = run(plan)
        if plan.decode_steps > 1:
            result.sampled[0].append(SampledToken(1))
        return result

    runner.run = too_many
    driver.step()

    assert lengths(driver, names) == [2]
