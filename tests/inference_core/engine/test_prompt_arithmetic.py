"""Where prompts have an arithmetic of their own, tokens depend on positions alone: not on the cache, memory or knobs
that change meanwhile."""

import msgspec
import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.engine import sequence_kv
from inference_core.errors import InvalidRequestError
from inference_core.kv_cache.prefix_hash import border_digest, root_digest
from inference_core.protocol import Knobs
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.hash_model import HashModelRunner

PROMPT = [1] * (3 * BLOCK)


def follow_up(driver: CoreDriver, first: str, **fields: object) -> str:
    """Ask again with the answer so far, as the next turn of a conversation does."""
    prompt = driver.requests[first].prompt_token_ids + driver.tokens[first, 0] + [6]
    second = driver.add(prompt, sampling=greedy(6), **fields)
    driver.drain()
    return second


@pytest.mark.parametrize("extra", range(BLOCK))
def test_a_prompt_that_repeats_an_answer_finds_the_blocks_of_its_prompt_alone(extra: int) -> None:
    """Those of the answer were computed as generated tokens; had they been evicted, they would be computed as prompt.
    Either way the tokens are the same: the driver compares them to what they are without a cache."""
    driver = CoreDriver(prompt_arithmetic=True)
    first = driver.add(PROMPT + [2] * extra, sampling=greedy(3 * BLOCK))
    driver.drain()

    second = follow_up(driver, first)

    assert driver.finished[second, 0].cached_tokens == len(PROMPT)


@pytest.mark.parametrize("extra", range(BLOCK))
def test_a_prompt_that_says_what_was_drawn_finds_the_blocks_of_its_answer_too(extra: int) -> None:
    """As an answer after its thought does."""
    driver = CoreDriver(prompt_arithmetic=True)
    first = driver.add(PROMPT + [2] * extra, sampling=greedy(3 * BLOCK))
    driver.drain()

    known = len(PROMPT) + extra
    second = follow_up(driver, first, drawn_from=known)

    computed = known + len(driver.tokens[first, 0]) - 1
    assert driver.finished[second, 0].cached_tokens == computed // BLOCK * BLOCK


@pytest.mark.parametrize("position", [-1, 4])
def test_what_was_drawn_begins_in_the_prompt(position: int) -> None:
    with pytest.raises(InvalidRequestError) as error:
        CoreDriver().add([1, 2, 3], drawn_from=position)
    assert error.value.param == "drawn_from"


def test_without_such_an_arithmetic_answers_are_found_as_before() -> None:
    driver = CoreDriver()
    first = driver.add(PROMPT, sampling=greedy(3 * BLOCK))
    driver.drain()
    second = follow_up(driver, first)
    assert driver.finished[second, 0].cached_tokens > len(PROMPT)


def test_a_cache_that_ignores_the_end_of_the_prompt_would_change_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_kv, "border_digest", lambda parent, fast_until: parent)
    driver = CoreDriver(prompt_arithmetic=True)
    first = driver.add(PROMPT, sampling=greedy(3 * BLOCK))
    driver.drain()
    with pytest.raises(AssertionError, match="said"):
        follow_up(driver, first)


def preempt_answers() -> CoreDriver:
    """Six requests in memory for fewer, later ones more urgent: some are preempted and computed again."""
    driver = CoreDriver(slabs=1, prompt_arithmetic=True, knobs=Knobs(prefill_chunk=3))
    for number in range(6):
        driver.add([number] * 5, sampling=greedy(30), priority=2 - number // 2)
        driver.step(4)
    driver.drain()
    return driver


def test_a_preempted_answer_continues_from_its_own_blocks_and_says_the_same() -> None:
    driver = preempt_answers()
    assert sum(output.times.preemptions for output in driver.finished.values()) > 0


@pytest.mark.parametrize("by", ["first", "last"])
def test_an_arithmetic_that_depends_on_the_chunk_would_change_tokens(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = HashModelRunner._write

    def broken(self: HashModelRunner, share: ScheduledSequence) -> None:
        position = share.start if by == "first" else share.start + len(share.token_ids) - 1
        write(self, msgspec.structs.replace(share, fast_until=1 << 30 if position < share.fast_until else 0))

    monkeypatch.setattr(HashModelRunner, "_write", broken)
    with pytest.raises(AssertionError, match="said"):
        preempt_answers()


def test_prompts_computed_exactly_and_fast_never_share_blocks() -> None:
    driver = CoreDriver(prompt_arithmetic=True)
    driver.add([*PROMPT, 3], sampling=greedy(2))
    driver.drain()
    driver.core.set_knobs({"prefill_arithmetic": "exact"})
    exact = driver.add([*PROMPT, 3], sampling=greedy(2))
    driver.drain()
    again = driver.add([*PROMPT, 3], sampling=greedy(2))
    driver.drain()
    assert driver.finished[exact, 0].cached_tokens == 0
    assert driver.finished[again, 0].cached_tokens == len(PROMPT)


def test_a_cache_that_ignores_the_arithmetic_would_change_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_kv, "root_digest", lambda salt, adapter, fast: root_digest(salt, adapter))
    driver = CoreDriver(prompt_arithmetic=True)
    driver.add([*PROMPT, 3], sampling=greedy(2))
    driver.drain()
    driver.core.set_knobs({"prefill_arithmetic": "exact"})
    driver.add([*PROMPT, 3], sampling=greedy(2))
    with pytest.raises(AssertionError, match="said"):
        driver.drain()


def test_a_request_keeps_the_arithmetic_that_it_came_with() -> None:
    driver = CoreDriver(prompt_arithmetic=True, knobs=Knobs(prefill_chunk=2))
    driver.add(PROMPT, sampling=greedy(4))
    driver.step(2)
    driver.core.set_knobs({"prefill_arithmetic": "exact"})
    driver.drain()


def test_drafted_tokens_are_verified_as_generated_ones() -> None:
    driver = CoreDriver(prompt_arithmetic=True, knobs=Knobs(speculation="prompt_lookup", draft_control="fixed"))
    driver.add([1, 2, 3, 4] * 4, sampling=greedy(12))
    driver.drain()


def test_names_of_blocks_depend_on_arithmetic_and_border() -> None:
    root = root_digest("tenant")
    names = {root, root_digest("tenant", fast=True), border_digest(root, 16), border_digest(root, 17)}
    assert len(names) == 4
