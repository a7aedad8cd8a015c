"""A core as its transports see it: commands in, outputs out, faults contained, time shared."""

import math

import pytest
from core_driver import BLOCK, CoreDriver
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import BadLogitsError, IntegrityError
from inference_core.fake_runner import hash_core
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from inference_core.sequence import choice_seed


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **fields)


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
    """KV-09: its seed was drawn once, so an interrupted run says what an undisturbed one says."""

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


# -- abort and faults ------------------------------------------------------------------------------


def test_an_abort_frees_all_blocks_of_all_choices_at_once() -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    request = driver.add([1] * 10, n=3, sampling=greedy(50))
    driver.step(3)
    driver.abort(request)
    assert not driver.core.has_work
    assert driver.arena.num_free == driver.arena.num_slabs
    assert [driver.finished[request, i].finish_reason for i in range(3)] == ["abort"] * 3


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_aborted_choice_frees_its_blocks_and_leaves_the_others_alone(index: int, steps: int) -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    request = driver.add([1] * 10, n=3, sampling=greedy(20))
    driver.step(steps)
    held = driver.pool().num_referenced
    driver.abort(request, index)
    assert driver.finished.keys() == {(request, index)}
    assert driver.finished[request, index].finish_reason == "abort"
    assert driver.pool().num_referenced < held or not held
    driver.drain()
    assert [driver.finished[request, i].finish_reason for i in range(3) if i != index] == ["length"] * 2
    driver.assert_all_free()


def test_a_request_is_over_once_its_last_choice_is_aborted() -> None:
    driver = CoreDriver()
    request = driver.add([1] * 10, n=2, sampling=greedy(20))
    driver.step(2)
    driver.abort(request, 1)
    assert driver.core.has_work
    driver.abort(request, 0)
    assert not driver.core.has_work


def test_an_abort_of_an_unknown_or_finished_choice_is_ignored() -> None:
    driver = CoreDriver()
    request = driver.add([1], n=2, sampling=greedy(20))
    driver.step(2)
    driver.abort(request, 1)
    assert driver.core.abort(request, 1) == []
    assert driver.core.abort(request, 2) == []
    assert driver.core.abort("never seen", 0) == []


def test_an_abort_of_an_unknown_or_finished_request_is_ignored() -> None:
    driver = CoreDriver()
    request = driver.add([1])
    driver.drain()
    assert driver.core.abort(request) == []
    assert driver.core.abort("never seen") == []


def test_a_runner_exception_ends_only_the_sequences_of_that_step() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, knobs=Knobs(max_num_seqs=1))
    hit = driver.add([1] * 5, "a", sampling=greedy(5))
    queued = driver.add([2] * 5, "a", sampling=greedy(5))
    other = driver.add([3] * 5, "b", sampling=greedy(5))
    driver.step(4)
    driver.runners["a"].fault = RuntimeError("device lost")
    driver.drain()
    assert (driver.finished[hit, 0].finish_reason, driver.finished[hit, 0].error) == ("error", "device lost")
    assert driver.finished[queued, 0].finish_reason == driver.finished[other, 0].finish_reason == "length"
    driver.assert_all_free()


def test_undrawable_logits_end_their_own_sequences_and_no_others() -> None:
    """The step is run again for the rest, within the same step."""
    driver = CoreDriver()
    ids = [driver.add([i], sampling=greedy(5)) for i in range(4)]
    driver.step()
    driver.runners["m"].fault = BadLogitsError([1, 3], 50)
    driver.step()
    assert [len(driver.tokens[request, 0]) for request in ids] == [2, 1, 2, 1]
    driver.drain()
    reasons = [driver.finished[request, 0].finish_reason for request in ids]
    assert reasons == ["length", "error", "length", "error"]


def test_a_runner_that_returns_nonsense_ends_its_step_with_a_clear_error() -> None:
    driver = CoreDriver()
    request = driver.add([1])
    driver.runners["m"]._draw = lambda *_: 50  # type: ignore[method-assign]
    driver.step()
    assert driver.finished[request, 0].finish_reason == "error"
    assert "1 tokens were asked for" in str(driver.finished[request, 0].error)


def test_a_lost_sequence_is_an_integrity_error() -> None:
    driver = CoreDriver()
    driver.add([1], sampling=greedy(9))
    driver.step()
    driver.scheduler().running.clear()
    with pytest.raises(IntegrityError):
        driver.core.check_integrity()


# -- accounting ------------------------------------------------------------------------------------


def test_queue_seconds_are_the_time_before_the_first_step_and_after_preemptions() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1), seconds_per_step=1.0)
    first = driver.add([1], priority=2, sampling=greedy(4))
    driver.step(2)  # t = 2
    urgent = driver.add([2], priority=0, sampling=greedy(3))
    driver.drain()  # urgent runs 2..5, the first one again 5..7
    assert driver.finished[urgent, 0].queue_seconds == 0
    assert driver.finished[first, 0].queue_seconds == 3
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
    driver.core.set_knobs(Knobs(max_num_seqs=4, max_num_batched_tokens=3))
    driver.step()
    assert len(driver.last_plan().sequences) == 3
    assert driver.core.stats().knobs.max_num_seqs == 4


# -- several models --------------------------------------------------------------------------------


def test_models_get_equal_time_not_equal_steps() -> None:
    """Deficit round robin on measured step time: steps of 10 and 1 ms share the core by time."""
    driver = CoreDriver({"slow": 1, "fast": 1}, slabs=20, seconds_per_step={"slow": 0.010, "fast": 0.001})
    for model in ("slow", "fast"):
        for i in range(3):
            driver.add([i], model, sampling=greedy(190))
    driver.step(180)
    tokens = {model: driver.runners[model].tokens_computed / 3 for model in ("slow", "fast")}
    assert tokens["slow"] * 0.010 == pytest.approx(tokens["fast"] * 0.001, abs=0.04)


def test_a_deadline_decides_which_model_goes_first() -> None:
    driver = CoreDriver({"a": 1, "b": 1, "c": 1})
    driver.add([1], "a")
    driver.add([1], "b", deadline=9.0)
    due = driver.add([1], "c", deadline=5.0)
    driver.step()
    assert list(driver.first_token_step) == [(due, 0)]


def test_models_without_deadlines_keep_their_share_beside_a_stream_of_deadlines() -> None:
    driver = CoreDriver({"urgent": 1, "plain": 1}, slabs=20)
    plain = driver.add([1], "plain", sampling=greedy(40))
    for _ in range(100):
        driver.add([2], "urgent", sampling=greedy(1), deadline=driver.clock())
        driver.step()
    assert (plain, 0) in driver.finished


def test_steps_of_no_measurable_time_still_take_turns() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, seconds_per_step=0.0)
    for model in ("a", "b"):
        driver.add([1], model, sampling=greedy(100))
    driver.step(20)
    assert [driver.runners[model].tokens_computed for model in ("a", "b")] == [10, 10]


@settings(max_examples=15, deadline=None)
@given(widths=st.tuples(st.integers(1, 4), st.integers(1, 4)), slabs=st.integers(10, 40), share=st.booleans())
def test_an_idle_models_slabs_go_to_the_busy_one_within_100_steps(
    widths: tuple[int, int], slabs: int, share: bool
) -> None:
    """The elastic arena: with prefix caching on, B gets at least 90% of the slabs that A left full of cache."""
    driver = CoreDriver({"a": widths[0], "b": widths[1]}, slabs=slabs, max_context=64, check=False)
    prefix = [5] * 8 if share else []
    i = 0
    while driver.arena.num_free:
        driver.add(prefix + [i % 50, i // 50] * 12, "a", sampling=greedy(30))
        driver.drain()
        i += 1
    left_by_a = driver.arena.slabs_of(driver.pool("a"))
    for i in range(200):
        driver.add([i % 50, i // 50] * 15, "b", sampling=greedy(34))
    best = 0.0
    for _ in range(100):
        driver.step()
        best = max(best, len(left_by_a & driver.arena.slabs_of(driver.pool("b"))) / len(left_by_a))
        driver.core.check_integrity()
    assert best >= 0.9


def test_a_busy_models_cache_grows_over_an_idle_ones_without_memory_pressure() -> None:
    """One request at a time needs few blocks, yet B's cache displaces A's, which nobody used for longer."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=6)
    for model in ("a", "b"):
        for i in range(30):
            driver.add([i] * 40, model, sampling=greedy(1))
            driver.drain()
    assert driver.pool("b").num_slabs >= 5


def test_a_model_that_waits_for_memory_is_not_kept_out_by_new_arrivals_of_another() -> None:
    """KV-10: B's request needs nearly the whole arena; A's arrivals of the same class hold back until it fits."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=2, knobs=Knobs(max_num_seqs=8, prefix_caching=False))
    large = None
    for i in range(300):
        while len(driver.scheduler("a").waiting) < 3:
            driver.add([i % 50] * 10, "a", sampling=greedy(12))
        if i == 20:
            large = driver.add([1] * 90, "b", sampling=greedy(4))
        driver.step()
    assert large is not None
    assert (large, 0) in driver.finished


def test_a_higher_class_takes_memory_from_another_models_batch_work() -> None:
    """BS-05 across models: the lowest class gives way wherever it runs."""
    driver = CoreDriver({"a": 1, "b": 1}, slabs=1)
    batch = driver.add([1] * 30, "a", priority=2, sampling=greedy(25))
    driver.step(2)
    urgent = driver.add([2] * 30, "b", priority=0, sampling=greedy(4))
    driver.drain()
    assert driver.finished[batch, 0].preemptions == 1
    assert driver.first_token_step[urgent, 0] <= 3


def test_two_models_that_need_the_whole_arena_each_both_finish() -> None:
    driver = CoreDriver({"a": 1, "b": 1}, slabs=1, knobs=Knobs(prefill_chunk=4))
    for model in ("a", "b"):
        driver.add([3] * 4, model, sampling=greedy(60))
    driver.drain(limit=600)


# -- predicted wait --------------------------------------------------------------------------------


def test_an_idle_core_predicts_no_wait() -> None:
    driver = CoreDriver()
    assert driver.core.stats().models[0].predicted_wait_seconds == 0
    driver.add([1])
    driver.drain()
    assert driver.core.stats().models[0].predicted_wait_seconds == 0


@pytest.mark.parametrize("queue", [1, 5, 20, 60])
def test_the_predicted_wait_is_what_a_newcomer_waits(queue: int) -> None:
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
    assert predicted == pytest.approx(driver.finished[newcomer, 0].queue_seconds, rel=0.25, abs=0.2)


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
