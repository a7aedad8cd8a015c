"""The core's interface for transports: how choices end, statistics, predicted waits."""

import math

import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.engine.sequence import choice_seed
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from tests.inference_core.hash_model import hash_core

# -- how a choice ends -----------------------------------------------------------------------------


def test_an_answer_ends_at_max_tokens() -> None:
    driver = CoreDriver()
    request = driver.add([1, 2, 3], sampling=greedy(5))
    driver.drain()
    output = driver.finished[request, 0]
    assert (output.finish_reason, output.completion_tokens, output.prompt_tokens) == ("length", 5, 3)


def test_an_answer_ends_when_the_context_is_full() -> None:
    driver = CoreDriver(max_context=20)
    request = driver.add([1] * 15, sampling=greedy(100))
    driver.drain()
    assert driver.finished[request, 0].finish_reason == "length"
    assert len(driver.tokens[request, 0]) == 5


def test_eos_ends_an_answer_and_is_not_part_of_it() -> None:
    driver = CoreDriver(eos_probability=1.0)
    request = driver.add([1, 2, 3])
    driver.drain()
    output = driver.finished[request, 0]
    assert (output.finish_reason, output.stop_token_id, output.token_ids) == ("stop", 49, [])
    assert output.completion_tokens == 0


def test_ignored_eos_is_a_token_like_others() -> None:
    driver = CoreDriver(eos_probability=1.0)
    request = driver.add([1, 2, 3], sampling=greedy(4))
    driver.drain()
    assert driver.tokens[request, 0] == [49] * 4


def test_a_stop_token_ends_an_answer() -> None:
    driver = CoreDriver()
    undisturbed = driver.runners["m"].expected_tokens([1, 2, 3], 16)
    stop = undisturbed[5]
    request = driver.add([1, 2, 3], sampling=greedy(16, stop_token_ids=(stop,)))
    driver.drain()
    assert driver.tokens[request, 0] == undisturbed[: undisturbed.index(stop)]
    assert driver.finished[request, 0].stop_token_id == stop


def test_no_answer_ends_by_a_stop_token_below_its_minimum() -> None:
    driver = CoreDriver(eos_probability=1.0)
    request = driver.add([1, 2, 3], sampling=SamplingParams(temperature=0, min_tokens=3, max_tokens=9))
    driver.drain()
    assert len(driver.tokens[request, 0]) == 3
    assert driver.finished[request, 0].finish_reason == "stop"


# -- seeds -----------------------------------------------------------------------------------------


def test_the_first_choice_uses_the_given_seed_and_the_others_seeds_of_their_own() -> None:
    driver = CoreDriver(slabs=20)
    sampled = SamplingParams(temperature=1, seed=42, max_tokens=12, ignore_eos=True)
    alone = driver.add([1, 2], sampling=sampled)
    three = driver.add([1, 2], sampling=sampled, n=3)
    driver.drain()
    assert driver.tokens[three, 0] == driver.tokens[alone, 0]
    assert len({tuple(driver.tokens[three, i]) for i in range(3)}) == 3


def test_choice_seeds_fit_a_signed_64_bit_generator() -> None:
    assert choice_seed(-5, 0) == -5
    assert all(0 <= choice_seed(seed, i) < 2**63 for seed in (-(2**63), 0, 2**63 - 1) for i in range(1, 50))


def test_unseeded_runs_replay_under_the_same_core_seed_and_differ_under_another() -> None:
    def run(seed: int) -> list[int]:
        driver = CoreDriver(seed=seed)
        outputs = []
        driver.core.add(
            AddRequest(
                request_id="r",
                model="m",
                prompt_token_ids=[1, 2],
                sampling=SamplingParams(temperature=1, max_tokens=10, ignore_eos=True),
            )
        )
        while driver.core.has_work:
            for output in driver.core.step():
                outputs += output.token_ids
        return outputs

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_preempted_unseeded_sequence_repeats_nothing_and_changes_nothing() -> None:
    """KV-09: its seed was drawn once, so a preempted run gives the same answer."""

    def run(interrupt: bool) -> list[int]:
        core = hash_core("m", knobs=Knobs(max_num_seqs=1))
        sampled = SamplingParams(temperature=1, max_tokens=20, ignore_eos=True)
        core.add(AddRequest(request_id="r", model="m", prompt_token_ids=[1], sampling=sampled, priority=2))
        tokens: list[int] = []
        for step in range(60):
            if interrupt and step == 7:
                core.add(AddRequest(request_id="x", model="m", prompt_token_ids=[2], sampling=greedy(3), priority=0))
            tokens += [t for output in core.step() if output.request_id == "r" for t in output.token_ids]
        return tokens

    assert run(interrupt=True) == run(interrupt=False)


# -- accounting ------------------------------------------------------------------------------------


def test_queue_seconds_are_the_time_before_the_first_step_and_after_preemptions() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1), seconds_per_step=1.0)
    first = driver.add([1], priority=2, sampling=greedy(4))
    driver.step(2)  # t = 2
    urgent = driver.add([2], priority=0, sampling=greedy(3))
    driver.drain()  # urgent runs 2..5, the first one again 5..7
    assert driver.finished[urgent, 0].times.queue_seconds == 0
    assert driver.finished[first, 0].times.queue_seconds == 3
    assert driver.clock() == 7


def test_stats_count_sequences_blocks_and_tokens() -> None:
    driver = CoreDriver({"a": 1, "b": 3}, slabs=4, knobs=Knobs(max_num_seqs=1))
    driver.add([1] * 10, "a", sampling=greedy(6))
    driver.add([2] * 10, "a", sampling=greedy(1))
    driver.step(2)
    stats = driver.core.stats("q1")
    a, b = stats.models
    assert (stats.query_id, stats.steps, stats.slabs_free, stats.slab_bytes) == ("q1", 2, 3, 1024)
    assert (a.running, a.waiting, a.blocks_in_use, a.blocks_cached, a.blocks_total) == (1, 1, 3, 0, 64)
    assert (a.prompt_tokens, a.generated_tokens, a.step_seconds_mean) == (10, 2, 0.01)
    assert (b.running, b.blocks_total, b.step_seconds_mean) == (0, 20, 0.0)
    driver.drain()
    assert driver.core.stats().models[0].generated_tokens == 7


def test_knobs_change_in_mid_run() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1))
    for i in range(4):
        driver.add([i], sampling=greedy(9))
    driver.step()
    assert len(driver.last_plan().sequences) == 1
    driver.core.set_knobs({"max_num_seqs": 4, "max_num_batched_tokens": 3})
    driver.step()
    assert len(driver.last_plan().sequences) == 3
    assert driver.core.stats().models[0].knobs.max_num_seqs == 4


# -- predicted wait --------------------------------------------------------------------------------


def test_an_idle_core_predicts_no_wait() -> None:
    driver = CoreDriver()
    assert driver.core.stats().models[0].predicted_wait_seconds == 0
    driver.add([1])
    driver.drain()
    assert driver.core.stats().models[0].predicted_wait_seconds == 0


@pytest.mark.parametrize("queue", [1, 5, 20, 60])
def test_the_predicted_wait_is_the_wait_of_a_new_request(queue: int) -> None:
    """Fixed answer lengths, four seats: the estimate meets the wait within a quarter and two answers."""
    driver = CoreDriver(slabs=40, knobs=Knobs(max_num_seqs=4, prefix_caching=False))
    for i in range(8):
        driver.add([i], sampling=greedy(10))
    driver.drain()
    for i in range(queue):
        driver.add([i % 50] * 5, sampling=greedy(10))
    driver.step()
    predicted = driver.core.stats().models[0].predicted_wait_seconds
    newcomer = driver.add([7] * 5, sampling=greedy(10))
    driver.drain()
    assert predicted == pytest.approx(driver.finished[newcomer, 0].times.queue_seconds, rel=0.25, abs=0.2)


def test_the_predicted_wait_is_finite_and_grows_with_the_queue() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=2))
    waits = []
    for _ in range(6):
        for _ in range(3):
            driver.add([1] * 10)
        driver.step()
        waits.append(driver.core.stats().models[0].predicted_wait_seconds)
    assert waits == sorted(waits)
    assert 0 < waits[-1] < math.inf


def test_blocks_are_named_so_that_equal_commands_give_equal_plans() -> None:
    """Determinism: two runs of the same commands schedule the same tokens into the same blocks."""

    def run() -> list[object]:
        driver = CoreDriver({"a": 1, "b": 3}, slabs=3, knobs=Knobs(max_num_batched_tokens=12), check=False)
        plans: list[object] = []
        for i in range(120):
            if i % 3 == 0:
                driver.add([i % 7] * (BLOCK + i % 11), "ab"[i % 2], priority=i % 3, n=1 + i % 2, sampling=greedy(9))
            driver.step()
            plans += [
                (s.sequence_id, s.start, s.token_ids, s.block_table)
                for model in "ab"
                if hasattr(driver.runners[model], "plans")
                for s in driver.last_plan(model).sequences
            ]
        return plans

    assert run() == run()
