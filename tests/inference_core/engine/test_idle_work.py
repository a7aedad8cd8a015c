"""Work without a caller runs only while nothing else does, stops within a step, and is no part of the load."""

import pytest
from core_driver import CoreDriver, greedy

from inference_core.engine.sequence import IDLE_LIFTS
from inference_core.protocol import Knobs

TWO = {"a": 1, "b": 1}


@pytest.mark.parametrize("asked_of", ["a", "b"])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_first_step_after_a_request_is_without_idle_work_of_any_model(asked_of: str, overlap: bool) -> None:
    driver = CoreDriver(TWO, overlap=overlap)
    alone = CoreDriver(TWO)
    alone.add([1] * 6, "a", greedy(30), request_id="idle", idle=True)
    alone.drain()
    driver.add([1] * 6, "a", greedy(30), request_id="idle", idle=True)
    driver.step(5)
    driver.add([2] * 9, asked_of, greedy(8), request_id="asked")

    before = len(driver.tokens["idle", 0])

    while ("asked", 0) not in driver.finished:
        driver.step()
    meanwhile = len(driver.tokens["idle", 0]) - before
    driver.drain()

    assert before > 0
    # The step that is under way when somebody asks is the last one.
    assert meanwhile == int(overlap)
    # It continues where it was, and says the same.
    assert driver.tokens["idle", 0] == alone.tokens["idle", 0]
    assert driver.finished["idle", 0].finish_reason == "length"


def test_idle_work_that_waits_does_not_start_while_a_caller_is_answered() -> None:
    driver = CoreDriver(TWO)
    driver.add([2] * 9, "b", greedy(20), request_id="asked")
    driver.step()
    driver.add([1] * 6, "b", greedy(3), request_id="same model", idle=True)
    driver.add([1] * 6, "a", greedy(3), request_id="other model", idle=True)

    driver.drain()

    first = {name: step for (name, _), step in driver.first_token_step.items()}
    last_asked = driver.first_token_step["asked", 0] + 19
    assert min(first["same model"], first["other model"]) > last_asked


def test_a_core_that_is_never_idle_gets_to_it_after_the_lifts_and_stops_it_no_more() -> None:
    knobs = Knobs(ageing_seconds=0.05, max_num_seqs=4)
    driver = CoreDriver(TWO, knobs=knobs)
    driver.add([1] * 6, "a", greedy(20), request_id="idle", idle=True)
    asked = 0
    while ("idle", 0) not in driver.finished:
        if len(driver.core._live.by_id) < 3:
            driver.add([2] * 5, "b", greedy(9), request_id=f"asked {asked}")
            asked += 1
        driver.step()
        assert driver.steps < 500

    waited = round(IDLE_LIFTS * knobs.ageing_seconds / 0.01)
    assert waited <= driver.first_token_step["idle", 0] < waited + 10


def test_idle_work_is_no_part_of_the_load() -> None:
    driver = CoreDriver(TWO, knobs=Knobs(max_num_seqs=2))
    [quiet, _] = driver.core.stats().models
    for number in range(4):
        driver.add([number] * 30, "a", greedy(40), idle=True)
    driver.step(8)

    [busy, _] = driver.core.stats().models

    assert busy.idle_work == 4
    assert len(driver.scheduler("a").running) == 2
    assert (busy.running, busy.waiting, busy.blocks_in_use) == (quiet.running, quiet.waiting, 0)
    assert busy.predicted_wait_seconds == 0.0

    driver.add([7] * 9, "a", greedy(5), request_id="asked")
    driver.step()
    [stopped, _] = driver.core.stats().models
    assert (stopped.running, stopped.waiting, stopped.idle_work) == (1, 0, 4)
    assert stopped.blocks_in_use > 0


def test_formed_batches_take_idle_work_as_any_other() -> None:
    driver = CoreDriver(knobs=Knobs(batching="static", max_num_seqs=4))
    driver.add([1] * 6, sampling=greedy(9), request_id="idle", idle=True)
    driver.step(3)
    driver.add([2] * 6, sampling=greedy(3), request_id="asked")

    driver.drain()

    assert driver.first_token_step["asked", 0] > driver.first_token_step["idle", 0] + 8
