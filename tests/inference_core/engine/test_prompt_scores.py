"""Log-probabilities of prompts: of every token but the first, once, whatever happens to the sequence meanwhile."""

import msgspec
import pytest
from core_driver import CoreDriver, greedy

from inference_core.engine.queues import MAX_SCORED_ROWS
from inference_core.errors import InvalidRequestError
from inference_core.protocol import Knobs, SamplingParams

SCORED = msgspec.structs.replace(greedy(3), prompt_logprobs=0)


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + i * i) % 49 for i in range(length)]


def test_a_prompt_is_scored_chunk_by_chunk_before_its_first_token() -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=7))
    driver.add(prompt(30), sampling=SCORED)
    driver.step(2)
    assert len(driver.scores["r0", 0]) == 14
    driver.drain()
    assert len(driver.scores["r0", 0]) == 29
    driver.assert_all_free()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_scored_prompt_takes_nothing_from_the_cache_and_leaves_its_blocks_there(overlap: bool) -> None:
    driver = CoreDriver(overlap=overlap)
    for sampling in (greedy(3), SCORED, greedy(3)):
        driver.add(prompt(30), sampling=sampling)
        driver.drain()
    assert [driver.finished[f"r{i}", 0].cached_tokens for i in range(3)] == [0, 0, 28]


def test_the_first_choice_alone_brings_the_scores_and_the_others_share_its_prompt() -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=8))
    driver.add(prompt(30), sampling=SCORED, n=3)
    driver.drain()
    assert [len(driver.scores["r0", index]) for index in range(3)] == [29, 0, 0]
    assert [driver.finished["r0", index].cached_tokens for index in range(3)] == [0, 28, 28]


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    driver = CoreDriver()
    driver.add([5], sampling=SCORED)
    driver.drain()
    assert driver.scores["r0", 0] == []


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prompt_that_fills_the_context_is_scored_whole(overlap: bool) -> None:
    driver = CoreDriver(slabs=4, overlap=overlap, knobs=Knobs(prefill_chunk=64))
    scored = msgspec.structs.replace(greedy(1), prompt_logprobs=0)
    for length in (200, 199):
        driver.add(prompt(length), sampling=scored)
        driver.drain()
    assert [len(driver.scores[f"r{i}", 0]) for i in range(2)] == [199, 198]
    assert driver.scores["r0", 0][:198] == driver.scores["r1", 0]
    assert driver.finished["r0", 0].finish_reason == "length"
    driver.assert_all_free()
    with pytest.raises(InvalidRequestError, match=r"201 tokens.*at most 200"):
        driver.add(prompt(201), sampling=scored)
    with pytest.raises(InvalidRequestError, match=r"200 tokens.*at most 199"):
        driver.add(prompt(200), sampling=SCORED)


def test_memory_has_to_hold_all_of_a_prompt_that_fills_the_context() -> None:
    with pytest.raises(InvalidRequestError, match=r"keep 200 tokens in 50 blocks.*has 48 blocks"):
        CoreDriver(slabs=3).add(prompt(200), sampling=msgspec.structs.replace(greedy(1), prompt_logprobs=0))


def test_a_preempted_prompt_is_scored_once_and_reuses_only_scored_blocks() -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=7, max_num_seqs=1))
    driver.add(prompt(60), sampling=SCORED, priority=2)
    driver.step(3)
    driver.add(prompt(9, first=30), sampling=greedy(2), priority=0)
    driver.drain()
    assert driver.finished["r0", 0].times.preemptions == 1
    assert len(driver.scores["r0", 0]) == 59
    # 21 tokens were scored and 20 of them, five whole blocks, cached; all others but one were computed once.
    assert driver.runners["m"].tokens_computed == 60 + 1 + 2 + 9 + 1


def test_a_step_scores_no_more_rows_than_it_has_memory_for() -> None:
    driver = CoreDriver(slabs=64, knobs=Knobs(max_num_batched_tokens=1000, prefill_chunk=1000))
    for first in range(4):
        driver.add(prompt(100, first), sampling=SCORED)
    known = []
    for _ in range(4):
        driver.step()
        known.append(sum(map(len, driver.scores.values())))
    assert known == [MAX_SCORED_ROWS, 2 * MAX_SCORED_ROWS, 3 * MAX_SCORED_ROWS, 4 * 99]


def test_a_chunk_that_is_halved_for_memory_is_scored_in_halves() -> None:
    driver = CoreDriver()
    driver.runners["m"].most_tokens = 9
    driver.add(prompt(31), sampling=SCORED)
    driver.drain()
    assert len(driver.scores["r0", 0]) == 30


def test_the_number_of_alternatives_is_checked() -> None:
    with pytest.raises(InvalidRequestError, match="prompt_logprobs is -1; allowed: from 0 to 50"):
        CoreDriver().add([1, 2], sampling=SamplingParams(prompt_logprobs=-1))
