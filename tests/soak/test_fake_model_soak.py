"""A soak of everything above the model: 20,000 requests to hash models that share a small arena (`make soak`)."""

import gc
from random import Random

import pytest
from traffic import Soak, Traffic, resident_bytes

from inference_core.engine.core import Core
from inference_core.engine.sequence import choice_seed
from inference_core.protocol import AddRequest, Knobs, SequenceOutput
from inference_core.step_plan import StepPlan, StepResult
from tests.inference_core.hash_model import HashModelRunner
from tests.support.clock import Clock

REQUESTS = 20_000
WARM_UP = 5_000
SLAB_BYTES = 2048
SLABS = 12
WIDTHS = {"narrow": 1, "middle": 2, "wide": 3}
IN_FLIGHT = 40
# Allowed growth by allocator and interpreter between two readings of a process without leaks.
NOISE_BYTES = 12 << 20


class CountingRunner(HashModelRunner):
    """A hash model that counts requested block copies, and sometimes loses a step."""

    copies = 0
    random = Random(5)

    def run(self, plan: StepPlan) -> StepResult:
        self.copies += len(plan.copies)
        if self.random.random() < 0.002:
            raise RuntimeError("a hiccup")
        return super().run(plan)


def hash_runners(clock: Clock) -> dict[str, CountingRunner]:
    memory = bytearray(SLABS * SLAB_BYTES)
    return {
        name: CountingRunner(
            name,
            memory,
            SLAB_BYTES,
            block_size=4,
            width=width,
            max_context=120,
            eos_probability=0.02,
            clock=clock,
            seconds_per_step=0.002,
            seconds_per_token=0.0005,
        )
        for name, width in WIDTHS.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Aborts, priorities, prefix sharing, lost steps, reused slabs: every answer right, memory constant."""
    caplog.set_level("CRITICAL", logger="inference_core.engine.step_executor")
    clock = Clock()
    runners = hash_runners(clock)

    def check(request: AddRequest, output: SequenceOutput, said: list[int]) -> None:
        """Compare an answer with one computed without batch, blocks or cache."""
        assert request.sampling.seed is not None
        seed = choice_seed(request.sampling.seed, output.index)
        runner = runners[request.model]
        truth = runner.expected_tokens(request.prompt_token_ids, request.sampling.max_tokens, request.sampling, seed)
        if output.finish_reason in ("abort", "error"):
            truth = truth[: len(said)]
        assert said == truth, f"{request.request_id}/{output.index} of {request.model} said {said}, not {truth}"

    core = Core(
        runners,
        arena_bytes=SLABS * SLAB_BYTES,
        slab_bytes=SLAB_BYTES,
        knobs=Knobs(max_num_batched_tokens=64, max_num_seqs=24, prefill_chunk=16, ageing_seconds=0.5),
        clock=clock,
        seed=1,
    )
    traffic = Traffic(list(WIDTHS), seed=11, vocab_size=999, longest_prefix=40, longest_tail=20, longest_answer=24)
    soak = Soak(core, traffic, clock, check, IN_FLIGHT)
    soak.run(WARM_UP)
    gc.collect()
    warm = resident_bytes()
    soak.run(REQUESTS - WARM_UP)
    gc.collect()
    growth = resident_bytes() - warm
    assert soak.answered == REQUESTS
    assert growth < NOISE_BYTES, f"{growth} bytes more than after {WARM_UP} requests"
    stats = core.stats()
    # The soak is useful only if it reached the critical paths.
    assert soak.ends.keys() >= {"stop", "length", "abort"}
    assert all(model.preemptions > 100 and model.prefix_hit_tokens > 10_000 for model in stats.models)
    assert all(runner.copies > 0 for runner in runners.values())
    assert all(model.running == model.waiting == model.blocks_in_use == 0 for model in stats.models)
    core.set_knobs({"prefix_caching": False})
    assert core.stats().slabs_free == SLABS
