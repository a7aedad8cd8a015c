"""A soak of everything above the model: 20,000 requests to hash models that share a small arena (`make soak`)."""

import gc
from random import Random

import pytest
from traffic import Traffic, resident_bytes

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


class Soak:
    """A core under traffic, with every answer checked against one computed without batch, blocks or cache."""

    def __init__(self) -> None:
        self.clock = Clock()
        memory = bytearray(SLABS * SLAB_BYTES)
        self.runners = {
            name: CountingRunner(
                name,
                memory,
                SLAB_BYTES,
                block_size=4,
                width=width,
                max_context=120,
                eos_probability=0.02,
                clock=self.clock,
                seconds_per_step=0.002,
                seconds_per_token=0.0005,
            )
            for name, width in WIDTHS.items()
        }
        self.core = Core(
            self.runners,
            arena_bytes=len(memory),
            slab_bytes=SLAB_BYTES,
            knobs=Knobs(max_num_batched_tokens=64, max_num_seqs=24, prefill_chunk=16, ageing_seconds=0.5),
            clock=self.clock,
            seed=1,
        )
        self.traffic = Traffic(
            list(WIDTHS), seed=11, vocab_size=999, longest_prefix=40, longest_tail=20, longest_answer=24
        )
        self.live: dict[str, AddRequest] = {}
        self.said: dict[tuple[str, int], list[int]] = {}
        self.leaving: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.answered = 0
        self.steps = 0

    def run(self, requests: int) -> None:
        """Send `requests` more and wait for all of them."""
        sent = 0
        while sent < requests or self.live:
            while sent < requests and len(self.live) < IN_FLIGHT:
                self._send()
                sent += 1
            self._note(self.core.step())
            self.steps += 1
            for request_id in [r for r, step in self.leaving.items() if step <= self.steps]:
                self._note(self.core.abort(request_id))
            if self.answered % 50 == 0:
                self.core.check_integrity()

    def _send(self) -> None:
        request = self.traffic.next(self.clock())
        self.core.add(request)
        self.live[request.request_id] = request
        self.said |= {(request.request_id, index): [] for index in range(request.n)}
        if self.traffic.is_impatient():
            self.leaving[request.request_id] = self.steps + request.sampling.max_tokens // 2

    def _note(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            self.said[key] += output.token_ids
            if output.finish_reason is not None:
                self._check(self.live[output.request_id], output.index, self.said.pop(key), output.finish_reason)
                if not any((output.request_id, index) in self.said for index in range(self.live[output.request_id].n)):
                    del self.live[output.request_id]
                    self.leaving.pop(output.request_id, None)
                    self.answered += 1

    def _check(self, request: AddRequest, index: int, said: list[int], reason: str) -> None:
        self.ends[reason] = self.ends.get(reason, 0) + 1
        assert request.sampling.seed is not None
        seed = choice_seed(request.sampling.seed, index)
        runner = self.runners[request.model]
        truth = runner.expected_tokens(request.prompt_token_ids, request.sampling.max_tokens, request.sampling, seed)
        if reason in ("abort", "error"):
            truth = truth[: len(said)]
        assert said == truth, f"{request.request_id}/{index} of {request.model} said {said}, not {truth}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Aborts, priorities, prefix sharing, lost steps, reused slabs: every answer right, memory constant."""
    caplog.set_level("CRITICAL", logger="inference_core.engine.step_executor")
    soak = Soak()
    soak.run(WARM_UP)
    gc.collect()
    warm = resident_bytes()
    soak.run(REQUESTS - WARM_UP)
    gc.collect()
    growth = resident_bytes() - warm
    assert soak.answered == REQUESTS
    assert growth < NOISE_BYTES, f"{growth} bytes more than after {WARM_UP} requests"
    soak.core.check_integrity()
    stats = soak.core.stats()
    # The soak is useful only if it reached the critical paths.
    assert soak.ends.keys() >= {"stop", "length", "abort"}
    assert all(model.preemptions > 100 and model.prefix_hit_tokens > 10_000 for model in stats.models)
    assert all(runner.copies > 0 for runner in soak.runners.values())
    assert all(model.running == model.waiting == model.blocks_in_use == 0 for model in stats.models)
    soak.core.set_knobs({"prefix_caching": False})
    assert soak.core.stats().slabs_free == SLABS
