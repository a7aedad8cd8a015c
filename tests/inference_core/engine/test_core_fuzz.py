"""A long random run of a core with three models in a tiny arena (SPEC KV-10)."""

import logging
from random import Random

import msgspec
import pytest
from core_driver import BLOCK, CoreDriver

from inference_core.errors import BadLogitsError, QueueFullError
from inference_core.protocol import Knobs, SamplingParams


def random_prompt(random: Random) -> list[int]:
    pieces = [[random.randrange(3)] * BLOCK for _ in range(random.randint(0, 6))]
    return [token for piece in pieces for token in piece] + [random.randrange(50)] * random.randint(1, 5)


def random_knobs(random: Random) -> Knobs:
    return Knobs(
        max_num_batched_tokens=random.choice([3, 16, 64]),
        max_num_seqs=random.randint(1, 12),
        prefill_chunk=random.choice([2, 8, 32]),
        prefix_caching=random.random() < 0.8,
        max_waiting=random.randint(8, 40),
        batching=random.choices(["continuous", "dynamic", "static"], [8, 1, 1])[0],
        max_queue_delay_ms=random.choice([0.0, 20.0]),
        preferred_batch_sizes=random.choice([[], [3]]),
        max_join_penalty=random.choice([1.0, 2.0, 10.0]),
        block_moves_per_step=random.choice([0, 3, 64]),
        host_cache_blocks=random.choice([0, 10, 300]),
        ageing_seconds=random.choice([0.1, 1.0, 10.0]),
        auto_tune=random.random() < 0.5,
        itl_objective_ms=random.choice([1.0, 15.0, 100.0]),
    )


@pytest.mark.properties
def test_ten_thousand_random_steps_neither_run_out_of_memory_nor_lose_a_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """KV-10: arrivals, aborts, faults and knob changes; every invariant after every step, every answer exact."""
    caplog.set_level(logging.CRITICAL, logger="inference_core.engine.step_executor")
    random = Random(20)
    driver = CoreDriver(
        {"a": 1, "b": 3, "c": 2}, slabs=5, eos_probability=0.02, max_context=60, seconds_per_token=0.001
    )
    refused = 0
    for _ in range(10_000):
        if random.random() < 0.25:
            sampling = SamplingParams(
                temperature=random.choice([0.0, 1.0]), seed=random.randrange(9), max_tokens=random.randint(1, 30)
            )
            try:
                driver.add(
                    random_prompt(random),
                    random.choice("abc"),
                    sampling,
                    n=random.choice([1, 1, 1, 3]),
                    priority=random.randrange(3),
                    deadline=random.choice([None, driver.clock() + random.random()]),
                    salt=random.choice(["", "tenant"]),
                )
            except QueueFullError:
                refused += 1
        if random.random() < 0.02 and driver.core.has_work:
            driver.abort(random.choice(sorted(driver.core._live.by_id)))
        if random.random() < 0.01:
            driver.runners[random.choice("abc")].fault = random.choice([RuntimeError("lost"), BadLogitsError([0], 50)])
        if random.random() < 0.01:
            driver.core.set_knobs(msgspec.structs.asdict(random_knobs(random)))
        driver.step()
    driver.drain()
    assert driver.finished.keys() == driver.tokens.keys()
    totals = [driver.scheduler(model).totals for model in "abc"]
    # The run is of use only if it went where it hurts.
    assert refused > 0
    assert all(driver.runners[model].restored > 10 for model in "abc")
    assert all(t.preemptions > 10 and t.prefix_hit_tokens > 1000 for t in totals)
    assert {output.finish_reason for output in driver.finished.values()} == {"stop", "length", "abort", "error"}
    driver.assert_all_free()
