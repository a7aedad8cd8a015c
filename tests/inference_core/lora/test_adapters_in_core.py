"""Adapters are loaded and unloaded while a core serves: more of them than slots, none lost or mixed up (SPEC LO-02,
LO-03)."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "engine"))
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.errors import InvalidRequestError
from inference_core.lora.adapter import AdapterSlots
from inference_core.protocol import Knobs

PROMPT = list(range(4 * BLOCK + 1))


def driver_with(*names: str, slots: int = 2, **fields: object) -> CoreDriver:
    driver = CoreDriver(adapter_slots=slots, **fields)
    for name in names:
        driver.core.load_adapter("m", name, name)
    return driver


def stats(driver: CoreDriver):
    return driver.core.stats().models[0]


def test_more_adapters_than_slots_are_all_served_and_evictions_counted():
    driver = driver_with(*"abcde")
    # Of unequal length, so that one of two slots is in use while the other makes room.
    requests = [driver.add(PROMPT, adapter=name, sampling=greedy(6 + n % 3)) for n, name in enumerate("abcdeabcde")]

    driver.drain()

    assert all(driver.finished[request, 0].finish_reason == "length" for request in requests)
    assert stats(driver).adapter_slots == 2
    assert stats(driver).adapter_installs == stats(driver).adapter_evictions + 2
    assert stats(driver).adapter_evictions >= 3


def test_an_adapter_in_use_keeps_its_slot_and_others_wait_for_it():
    driver = driver_with("a", "b", slots=1)
    first = driver.add(PROMPT, adapter="a", sampling=greedy(10))
    second = driver.add(PROMPT, adapter="b", sampling=greedy(2))

    driver.step(5)

    assert [(i.name, i.resident, i.running) for i in stats(driver).adapters] == [("a", True, 1), ("b", False, 0)]
    assert not driver.tokens[second, 0]
    driver.drain()
    assert driver.first_token_step[second, 0] > driver.first_token_step[first, 0] + 8


def test_the_least_recently_used_adapter_makes_room():
    driver = driver_with(*"abc")
    for name in "aba":
        driver.add(PROMPT, adapter=name, sampling=greedy(2))
        driver.drain()

    driver.add(PROMPT, adapter="c", sampling=greedy(2))
    driver.drain()

    assert [i.name for i in stats(driver).adapters if i.resident] == ["a", "c"]


def test_no_prefix_is_shared_between_adapters_or_with_the_model_alone():
    driver = driver_with("a", "b")
    for name in ("", "a", "b"):
        request = driver.add(PROMPT, adapter=name, sampling=greedy(2))
        driver.drain()
        assert driver.finished[request, 0].cached_tokens == 0, name

    again = driver.add(PROMPT, adapter="a", sampling=greedy(2))
    driver.drain()

    assert driver.finished[again, 0].cached_tokens == 4 * BLOCK


def test_a_name_that_comes_back_with_other_content_finds_no_old_prefix():
    driver = driver_with("a")
    driver.add(PROMPT, adapter="a", sampling=greedy(2))
    driver.drain()
    driver.core.unload_adapter("m", "a")
    driver.core.load_adapter("m", "a", "another")

    request = driver.add(PROMPT, adapter="a", sampling=greedy(2))
    driver.drain()

    assert driver.finished[request, 0].cached_tokens == 0


def test_an_unloaded_adapter_serves_its_running_requests_and_no_new_ones():
    driver = driver_with("a", "b", slots=1)
    running = driver.add(PROMPT, adapter="a", sampling=greedy(6))
    waiting = driver.add(PROMPT, adapter="a", sampling=greedy(6), priority=2)
    driver.step(2)

    driver.core.unload_adapter("m", "a")

    with pytest.raises(InvalidRequestError, match="'a' is being unloaded; loaded: b"):
        driver.add(PROMPT, adapter="a")
    with pytest.raises(InvalidRequestError, match="is being unloaded; wait"):
        driver.core.load_adapter("m", "a", "a")
    driver.drain()
    assert {driver.finished[r, 0].finish_reason for r in (running, waiting)} == {"length"}
    assert [i.name for i in stats(driver).adapters] == ["b"]
    driver.core.load_adapter("m", "a", "a")


def test_an_abort_ends_what_kept_an_unloaded_adapter():
    driver = driver_with("a")
    request = driver.add(PROMPT, adapter="a", sampling=greedy(50))
    driver.step(2)
    driver.core.unload_adapter("m", "a")

    driver.abort(request)

    assert driver.core.adapters("m") == []


def test_neither_abort_nor_preemption_leaves_a_pin_behind():
    driver = driver_with("a", "b", slots=2, slabs=1, knobs=Knobs(ageing_seconds=1000.0))
    low = [driver.add(PROMPT, adapter=name, sampling=greedy(30), priority=2) for name in "ab"]
    driver.step(10)
    urgent = driver.add(PROMPT, adapter="", sampling=greedy(30), priority=0)
    driver.step(3)
    assert stats(driver).preemptions

    driver.abort(low[0])
    driver.drain()

    assert not any(i.running for i in stats(driver).adapters)
    assert {driver.finished[r, 0].finish_reason for r in (low[1], urgent)} == {"length"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "name is ''"), ("a:b", "name is 'a:b'"), ("x" * 65, "up to 64"), ("a", "'a' is loaded; unload it first")],
)
def test_names_that_cannot_be_had_are_refused(name, reason):
    driver = driver_with("a")

    with pytest.raises(InvalidRequestError, match=reason) as refused:
        driver.core.load_adapter("m", name, "path")

    assert refused.value.param == "name"


def test_unknown_adapters_and_models_without_slots_are_refused():
    driver = driver_with("a")
    with pytest.raises(InvalidRequestError, match="adapter 'b' is unknown; loaded: a") as refused:
        driver.add(PROMPT, adapter="b")
    assert refused.value.param == "adapter"
    with pytest.raises(InvalidRequestError, match="model 'n' is unknown"):
        driver.core.load_adapter("n", "b", "b")
    with pytest.raises(InvalidRequestError, match="serves no adapters"):
        AdapterSlots(None).load("b", Path("b"))
