"""Token budget, admission, memory and preemption in each step (SPEC BS-01 to BS-13, KV-09, KV-10)."""

import pytest
from core_driver import BLOCK, CoreDriver

from inference_core.protocol import Knobs, SamplingParams


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **fields)


def shares(driver: CoreDriver) -> dict[str, int]:
    """Tokens per sequence in the last step."""
    return {s.sequence_id: len(s.token_ids) for s in driver.last_plan().sequences}


def order_of_first_tokens(driver: CoreDriver) -> list[str]:
    return [request_id for request_id, _ in sorted(driver.first_token_step, key=driver.first_token_step.__getitem__)]


# -- tokens --------------------------------------------------------------------------------------


def test_decodes_come_first_and_prompts_fill_the_rest_of_the_budget() -> None:
    """BS-07, BS-09: the batch is ragged and holds exactly the tokens that are needed."""
    driver = CoreDriver(knobs=Knobs(max_num_batched_tokens=10, prefill_chunk=100))
    driver.add([1] * 6, request_id="old", sampling=greedy(9))
    driver.step()
    driver.add([2] * 30, request_id="new", priority=0)
    driver.step()
    assert list(shares(driver).items()) == [("old/0", 1), ("new/0", 9)]


def test_a_long_prompt_is_computed_in_chunks_one_per_step() -> None:
    """BS-06: at most one chunk per request and step; the last one may be short."""
    driver = CoreDriver(knobs=Knobs(max_num_batched_tokens=100, prefill_chunk=8))
    driver.add([1] * 20, request_id="long", sampling=greedy(2))
    chunks = []
    while driver.core.has_work:
        driver.step()
        chunks.append(shares(driver)["long/0"])
    assert chunks == [8, 8, 4, 1]


def test_running_sequences_get_a_token_in_every_step_of_a_neighbours_long_prompt() -> None:
    """BS-06: inter-token latency does not depend on prompts that arrive."""
    driver = CoreDriver(knobs=Knobs(max_num_batched_tokens=12, prefill_chunk=8))
    driver.add([1, 2], request_id="old", sampling=greedy(30))
    driver.step()
    driver.add([2] * 100, request_id="long", sampling=greedy(1))
    for _ in range(13):
        driver.step()
        assert shares(driver)["old/0"] == 1
    assert ("long", 0) in driver.finished


def test_tokens_computed_are_the_sum_of_lengths() -> None:
    """BS-09: no padding, nothing computed twice; the last token of each answer is never computed."""
    driver = CoreDriver(slabs=40, knobs=Knobs(prefix_caching=False))
    total = 0
    for length, answer in [(1, 1), (3, 7), (20, 1), (17, 12), (40, 30)]:
        driver.add([length] * length, sampling=greedy(answer))
        total += length + answer - 1
    driver.drain()
    assert driver.runners["m"].tokens_computed == total


@pytest.mark.properties
def test_decodes_beyond_the_budget_take_turns() -> None:
    """BS-07: with 9 decodes and a budget of 4 no sequence waits longer than 3 steps for a token, over 10,000 steps."""
    driver = CoreDriver(slabs=60, knobs=Knobs(max_num_batched_tokens=4, max_num_seqs=9), check=False)
    last_turn: dict[str, int] = {}
    added = longest = 0
    for _ in range(10_000):
        while len(driver.core._live.by_id) < 9:
            driver.add([added % 40], request_id=f"q{added}", sampling=greedy(150))
            added += 1
        driver.step()
        for sequence_id in shares(driver):
            gap = driver.steps - last_turn.get(sequence_id, driver.steps)
            longest = max(longest, gap)
            last_turn[sequence_id] = driver.steps
    driver.core.check_integrity()
    assert len(driver.finished) == pytest.approx(10_000 * 4 / 150, abs=9)
    assert longest <= 3


def test_a_finished_request_leaves_in_its_step_and_its_seat_is_refilled_in_the_next() -> None:
    """BS-01, KV-01: blocks and seat are free as soon as the last token is drawn."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, prefix_caching=False))
    driver.add([1] * 5, request_id="first", sampling=greedy(2))
    driver.add([2] * 5, request_id="second", sampling=greedy(2))
    driver.step(2)
    assert ("first", 0) in driver.finished
    assert driver.pool().num_referenced == 0
    driver.step()
    assert shares(driver) == {"second/0": 5}


def test_a_sequence_wastes_less_than_one_block() -> None:
    """KV-01: blocks come on demand, while a prompt is computed in chunks too."""
    driver = CoreDriver(slabs=20, knobs=Knobs(prefill_chunk=3, max_num_batched_tokens=20))
    for length in (1, 4, 5, 23, 30):
        driver.add([length] * length, sampling=greedy(20))
    while driver.core.has_work:
        driver.step()
        for sequence in driver.scheduler().running.values():
            assert 0 <= len(sequence.kv.block_table) * BLOCK - sequence.kv.num_computed_tokens < BLOCK


# -- order ---------------------------------------------------------------------------------------


def test_service_goes_by_class_then_deadline_then_arrival() -> None:
    """BS-05: the queue is ordered whatever order requests were added in."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1))
    driver.add([1], request_id="batch", priority=2, deadline=1.0)
    driver.add([2], request_id="no-deadline")
    driver.add([3], request_id="late-arrival", deadline=9.0, arrival=4.0)
    driver.add([4], request_id="early-arrival", deadline=9.0, arrival=3.0)
    driver.add([5], request_id="urgent", deadline=2.0)
    driver.add([6], request_id="interactive", priority=0)
    driver.drain()
    assert order_of_first_tokens(driver) == [
        "interactive",
        "urgent",
        "early-arrival",
        "late-arrival",
        "no-deadline",
        "batch",
    ]


def test_ties_are_broken_by_the_order_of_adding() -> None:
    """BS-05: equal in everything, requests are never compared themselves, but by a unique number."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, max_waiting=100))
    ids = [driver.add([7], deadline=1.0, arrival=1.0) for _ in range(50)]
    driver.drain()
    assert order_of_first_tokens(driver) == ids


def test_waiting_lifts_a_request_by_one_class_per_ageing_interval() -> None:
    """BS-05: after 5 s a batch request equals a new normal one, and its earlier deadline decides."""

    def first_served(waited: float) -> str:
        driver = CoreDriver(knobs=Knobs(max_num_seqs=1, ageing_seconds=5.0))
        driver.add([1], request_id="aged", priority=2, deadline=1.0)
        driver.clock.advance(waited)
        driver.add([2], request_id="new", priority=1, deadline=100.0)
        driver.drain()
        return order_of_first_tokens(driver)[0]

    assert first_served(4.9) == "new"
    assert first_served(5.1) == "aged"


@pytest.mark.properties
def test_a_batch_request_is_served_within_bounds_under_endless_urgent_load() -> None:
    """BS-05: 10,000 steps of more interactive requests than fit do not starve the lowest class."""
    driver = CoreDriver(slabs=4, knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=8, ageing_seconds=1.0), check=False)
    victims = {}
    for i in range(10_000):
        while len(driver.scheduler().waiting) < 6:
            driver.add([len(driver.requests) % 50] * 5, priority=0, sampling=greedy(8), deadline=driver.clock())
        if i % 1000 == 0:
            victims[driver.add([i % 49] * 30, priority=2, sampling=greedy(20))] = driver.steps
        driver.step()
        if i % 100 == 0:
            driver.core.check_integrity()
    # A lift of two classes takes 200 steps of 0.01 s; the interactive ones before it age as well.
    waits = [driver.first_token_step[victim, 0] - added for victim, added in victims.items()]
    assert max(waits) < 600
    assert all((victim, 0) in driver.finished for victim in list(victims)[:-1])


# -- preemption ----------------------------------------------------------------------------------


def test_an_interactive_request_takes_the_seat_of_a_batch_one() -> None:
    """BS-05: a preempted sequence resumes and gives the same answer (KV-09)."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=2))
    driver.add([1] * 5, request_id="batch", priority=2, sampling=greedy(20))
    driver.add([2] * 5, request_id="normal", priority=1, sampling=greedy(20))
    driver.step(4)
    driver.add([3] * 5, request_id="critical", priority=0, sampling=greedy(4))
    driver.step()
    assert shares(driver) == {"normal/0": 1, "critical/0": 5}
    driver.drain()
    assert driver.finished["batch", 0].times.preemptions == 1
    assert driver.finished["normal", 0].times.preemptions == 0
    assert driver.finished["critical", 0].times.queue_seconds == 0


def test_equal_classes_never_push_each_other_out_of_a_seat() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, ageing_seconds=0.01))
    driver.add([1] * 5, request_id="first", sampling=greedy(20))
    driver.step()
    driver.add([2] * 5, request_id="urgent", deadline=0.0)
    driver.drain()
    assert driver.finished["first", 0].times.preemptions == 0


def test_an_aged_batch_request_keeps_its_seat() -> None:
    """BS-05: ageing orders the queue and protects an admitted sequence, but preempts no other."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, ageing_seconds=1.0))
    driver.add([1] * 5, request_id="batch", priority=2, sampling=greedy(20))
    driver.clock.advance(2.5)
    driver.step()
    driver.add([2] * 5, request_id="critical", priority=0)
    driver.drain()
    assert order_of_first_tokens(driver) == ["batch", "critical"]


def test_out_of_blocks_the_lowest_class_and_least_computed_gives_way() -> None:
    """KV-09: 16 blocks; when they run out, of two batch sequences the shorter is recomputed."""
    driver = CoreDriver(slabs=1, knobs=Knobs(prefix_caching=False))
    driver.add([1] * 8, request_id="batch-long", priority=2, sampling=greedy(24))
    driver.add([2] * 4, request_id="batch-short", priority=2, sampling=greedy(24))
    driver.add([3] * 4, request_id="normal", priority=1, sampling=greedy(24))
    driver.drain()
    preemptions = {request_id: output.times.preemptions for (request_id, _), output in driver.finished.items()}
    assert preemptions == {"normal": 0, "batch-long": 0, "batch-short": 1}


def test_a_preempted_sequence_resumes_from_its_cached_blocks() -> None:
    """KV-09: recomputing costs little, for full blocks stay cached while their memory is not needed."""
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1))
    driver.add([1] * 9, request_id="batch", priority=2, sampling=greedy(20))
    driver.step(8)
    driver.add([2] * 2, request_id="critical", priority=0, sampling=greedy(1))
    driver.drain()
    # Computed once: 9 + 19 and 2; recomputed: the tokens after the last full block before position 16.
    assert driver.runners["m"].tokens_computed == 9 + 19 + 2
    assert driver.finished["batch", 0].times.preemptions == 1
    assert driver.finished["batch", 0].cached_tokens == 0


def test_admission_leaves_running_sequences_a_block_each() -> None:
    """KV-10: of 16 blocks 9 are held; a prompt of 7 would leave no block to continue with, one of 6 does."""
    for length, admitted in [(28, False), (24, True)]:
        driver = CoreDriver(slabs=1, knobs=Knobs(prefix_caching=False))
        driver.add([1] * 32, request_id="running", sampling=greedy(2))
        driver.step()
        driver.add([2] * length, request_id="new", sampling=greedy(1))
        driver.step()
        assert ("new/0" in shares(driver)) == admitted


def test_small_requests_overtake_a_large_one_that_waits_for_memory_only_until_it_ages() -> None:
    """KV-10: small requests, which would fit and come all the time, would keep it out for ever."""
    driver = CoreDriver(slabs=1, knobs=Knobs(prefix_caching=False, ageing_seconds=0.2), seconds_per_step=0.01)
    driver.add([1] * 20, request_id="running", sampling=greedy(30))
    driver.step()
    driver.add([2] * 45, request_id="large", sampling=greedy(1))
    for i in range(60):
        driver.add([3, i % 50], request_id=f"small{i}", sampling=greedy(4))
        driver.step()
    before_large = order_of_first_tokens(driver).index("large")
    assert 10 < before_large <= 45
    assert driver.finished["running", 0].times.preemptions == 0


def test_the_shortest_remaining_prompt_comes_first_within_a_class() -> None:
    """BS-05: the mean time to the first token is least so; a better class and an earlier deadline still come before."""
    driver = CoreDriver(slabs=8, knobs=Knobs(max_num_batched_tokens=8, prefill_chunk=8))
    lengths = {"long": 30, "middle": 20, "short": 10}
    for name, length in lengths.items():
        driver.add([ord(name[0]) % 50] * length, request_id=name, sampling=greedy(1))
    driver.add([1] * 40, request_id="critical", priority=0, sampling=greedy(1))
    driver.drain()
    assert order_of_first_tokens(driver) == ["critical", "short", "middle", "long"]


def test_tokens_in_the_prefix_cache_do_not_count_as_remaining() -> None:
    driver = CoreDriver(slabs=8, knobs=Knobs(max_num_batched_tokens=8, prefill_chunk=8))
    conversation = [7] * 40
    driver.add(conversation, request_id="first turn", sampling=greedy(1))
    driver.drain()
    driver.add([1] * 20, request_id="new", sampling=greedy(1))
    driver.add([*conversation, 8, 9], request_id="second turn", sampling=greedy(1))
    driver.drain()
    assert order_of_first_tokens(driver) == ["first turn", "second turn", "new"]


def test_only_the_first_prompt_of_a_step_gets_a_part_of_a_chunk() -> None:
    """BS-06: a part of a second prompt would delay the first without ending the second sooner."""
    driver = CoreDriver(slabs=8, knobs=Knobs(max_num_batched_tokens=12, prefill_chunk=8))
    granted = []
    for i in range(3):
        driver.add([i] * 8, request_id=str(i), sampling=greedy(1))
    for _ in range(3):
        driver.step()
        granted.append(shares(driver))
    assert granted == [{"0/0": 8}, {"1/0": 8}, {"2/0": 8}]


def test_a_prompt_that_ends_in_what_the_first_leaves_joins_its_step() -> None:
    driver = CoreDriver(slabs=8, knobs=Knobs(max_num_batched_tokens=12, prefill_chunk=12))
    driver.add([1] * 8, request_id="a", sampling=greedy(1))
    driver.add([2] * 4, request_id="b", sampling=greedy(1))
    driver.step()
    assert shares(driver) == {"b/0": 4, "a/0": 8}


def test_two_sequences_that_do_not_fit_together_both_finish() -> None:
    """KV-09: each would need the whole arena; preemption does not go back and forth."""
    driver = CoreDriver(slabs=1, knobs=Knobs(prefill_chunk=4))
    for i in range(2):
        driver.add([i] * 4, sampling=greedy(60))
    driver.drain(limit=400)
    assert driver.scheduler().totals.preemptions <= 2


# -- prefix cache --------------------------------------------------------------------------------


def test_a_repeated_prompt_comes_from_the_cache_except_its_last_block() -> None:
    """KV-05: of 12 tokens (3 blocks) at most 8 may be cached, since the last token is always computed."""
    driver = CoreDriver()
    for _ in range(2):
        last = driver.add([1] * 12, sampling=greedy(1))
        driver.drain()
    assert driver.finished[last, 0].cached_tokens == 8
    assert driver.runners["m"].tokens_computed == 12 + 4
    stats = driver.core.stats().models[0]
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens, stats.prompt_tokens) == (24, 8, 24)


def test_a_long_system_prompt_is_computed_once() -> None:
    """KV-05: a hit rate of at least 90% on a shared system prompt."""
    driver = CoreDriver(slabs=10)
    for i in range(30):
        driver.add([9] * 96 + [i % 50, i // 50], sampling=greedy(2))
        driver.drain()
    stats = driver.core.stats().models[0]
    assert stats.prefix_hit_tokens / stats.prefix_query_tokens >= 0.9


def test_tenants_do_not_share_a_cache() -> None:
    """KV-05: whether a prompt was seen before must not show to another tenant."""
    driver = CoreDriver()
    for salt in ("alice", "bob", "alice"):
        last = driver.add([1] * 12, salt=salt)
        driver.drain()
        assert driver.finished[last, 0].cached_tokens == (8 if len(driver.requests) == 3 else 0)


def test_choices_of_one_request_share_the_prompt_that_the_first_computes() -> None:
    """KV-05: the prompt's 5 full blocks are computed once; each choice computes its own tail."""
    driver = CoreDriver(knobs=Knobs(prefill_chunk=8))
    request = driver.add([1] * 22, n=4, sampling=SamplingParams(temperature=1, seed=3, max_tokens=1, ignore_eos=True))
    driver.drain()
    assert driver.runners["m"].tokens_computed == 22 + 3 * 2
    assert [driver.finished[request, i].cached_tokens for i in range(4)] == [0, 20, 20, 20]
    assert driver.core.stats().models[0].prompt_tokens == 22


def test_choices_start_at_once_where_there_is_nothing_to_share() -> None:
    driver = CoreDriver()
    driver.add([1] * BLOCK, n=3)
    driver.step()
    assert len(shares(driver)) == 3


def test_choices_do_not_wait_while_prefix_caching_is_off() -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    driver.add([1] * 22, n=3)
    driver.step()
    assert len(shares(driver)) == 3


def test_choices_go_on_when_the_first_one_fails() -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=8))
    request = driver.add([1] * 22, n=3)
    driver.runners["m"].fault = RuntimeError("device lost")
    driver.step()
    assert driver.finished[request, 0].finish_reason == "error"
    driver.drain()
    assert [driver.finished[request, i].finish_reason for i in (1, 2)] == ["length", "length"]


def test_switching_prefix_caching_off_frees_the_cache_and_on_again_refills_it() -> None:
    driver = CoreDriver()
    driver.add([1] * 40, sampling=greedy(1))
    driver.drain()
    assert driver.pool().num_evictable == 10
    driver.core.set_knobs({"prefix_caching": False})
    assert driver.pool().num_slabs == 0
    driver.core.set_knobs({"prefix_caching": True})
    for cached in (0, 36):
        last = driver.add([1] * 40, sampling=greedy(1))
        driver.drain()
        assert driver.finished[last, 0].cached_tokens == cached
