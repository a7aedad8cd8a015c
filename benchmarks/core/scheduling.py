"""What a step costs besides the model: scheduling, bookkeeping, commit and the prefix cache, with nothing computed."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

from inference_core.core import Core
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.prefix_hash import chain_digests, root_digest
from inference_core.kv_cache.slab_arena import SlabArena
from inference_core.model_config import ModelConfig
from inference_core.protocol import AddRequest, Knobs, ModelInfo, SamplingParams
from inference_core.step_plan import SampledToken, StepPlan, StepResult

BLOCK = 16
BLOCKS_PER_SLAB = 64
VOCABULARY = 50_000
PROMPT = 128
MODEL = "constant"
MAX_CONTEXT = 8192


class ConstantRunner(ModelRunner):
    """Draws token 7 for whoever samples; `seconds` is the CPU time that this itself has taken."""

    def __init__(self) -> None:
        self.info = ModelInfo(
            name=MODEL,
            model_path="",
            max_context=MAX_CONTEXT,
            vocab_size=VOCABULARY,
            weight_bytes=0,
            compute="constant",
        )
        self.config = ModelConfig(
            architecture="llama",
            vocab_size=VOCABULARY,
            hidden_size=2,
            intermediate_size=2,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            max_position=MAX_CONTEXT,
            rms_eps=1e-6,
            rope_theta=1e4,
        )
        self.layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=BLOCK, dtype="float32")
        self.seconds = 0.0
        self._drawn = [SampledToken(7)]

    def run(self, plan: StepPlan) -> StepResult:
        """One constant token for each sequence that samples."""
        began = time.thread_time()
        result = StepResult([self._drawn if s.sample is not None else [] for s in plan.sequences])
        self.seconds += time.thread_time() - began
        return result


def bench_scheduling(*, sequences: tuple[int, ...], prompts: tuple[int, ...], repeats: int) -> Iterator[dict[str, Any]]:
    """Rows in microseconds of CPU time: a decode step by number of sequences, then the prefix cache by prompt length.

    Each figure is the least of `repeats`, which other processes on this machine disturb least. A decode step is the
    mean over as many steps as a block has tokens, so that each sequence takes and registers one block. "cold" is
    what prefix caching adds to a request of which nothing is cached, from `add` to its end, in a full arena, so that
    evictions count too; "hit" is what looking up and releasing a prompt takes of which all is cached.
    """
    for count in sequences:
        yield {"step": "decode", "sequences": count, "us_per_step": round(_decode_step(count, repeats) * 1e6, 1)}
    for length in prompts:
        cold = _cold_request(length, True, repeats) - _cold_request(length, False, repeats)
        yield {
            "prefix_cache_tokens": length,
            "cold_us_per_request": round(cold * 1e6, 1),
            "hit_us_per_request": round(_hit(length, repeats) * 1e6, 1),
        }


def _decode_step(count: int, repeats: int) -> float:
    answer = (repeats + 4) * BLOCK + count
    core, runner = _core(count * (PROMPT + answer + BLOCK) // BLOCK, Knobs(max_num_seqs=count))
    for number in range(count):
        core.add(_request(f"r{number}", [number + 1] * PROMPT, answer))
    while core.stats().models[0].generated_tokens < count * BLOCK:
        core.step()

    def steps() -> float:
        runner.seconds = 0.0
        began = time.thread_time()
        for _ in range(BLOCK):
            core.step()
        return (time.thread_time() - began - runner.seconds) / BLOCK

    return _least(steps, repeats)


def _cold_request(length: int, prefix_caching: bool, repeats: int) -> float:
    core, runner = _core(
        4 * length // BLOCK + BLOCKS_PER_SLAB, Knobs(prefix_caching=prefix_caching, prefill_chunk=length)
    )
    numbers = iter(range(10_000_000))

    def once() -> float:
        number = next(numbers)
        request = _request(f"r{number}", [number % VOCABULARY, number // VOCABULARY, *range(length - 2)], 1)
        runner.seconds = 0.0
        began = time.thread_time()
        core.add(request)
        while core.has_work:
            core.step()
        return time.thread_time() - began - runner.seconds

    for _ in range(20):
        once()
    return _least(once, repeats)


def _hit(length: int, repeats: int) -> float:
    """Naming the blocks of a prompt, finding all but the last, taking and dropping references to them."""
    layout = ConstantRunner().layout
    slab_bytes = BLOCKS_PER_SLAB * layout.block_bytes
    pool = BlockPool(MODEL, layout, SlabArena((length // BLOCK // BLOCKS_PER_SLAB + 1) * slab_bytes, slab_bytes))
    prompt, root, count = list(range(length)), root_digest(""), (length - 1) // BLOCK
    blocks = pool.allocate(count)
    assert blocks is not None
    pool.register(blocks, chain_digests(root, prompt, 0, count, BLOCK))
    pool.release(blocks)

    def once() -> float:
        began = time.thread_time()
        found = pool.match(chain_digests(root, prompt, 0, count, BLOCK))
        pool.acquire(found)
        pool.release(found)
        return time.thread_time() - began

    return _least(once, repeats)


def _core(blocks: int, knobs: Knobs) -> tuple[Core, ConstantRunner]:
    runner = ConstantRunner()
    slab_bytes = BLOCKS_PER_SLAB * runner.layout.block_bytes
    slabs = -(-blocks // BLOCKS_PER_SLAB)
    return Core({MODEL: runner}, arena_bytes=slabs * slab_bytes, slab_bytes=slab_bytes, knobs=knobs, seed=0), runner


def _request(request_id: str, prompt: list[int], max_tokens: int) -> AddRequest:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=request_id, model=MODEL, prompt_token_ids=prompt, sampling=sampling)


def _least(measure: Callable[[], float], repeats: int) -> float:
    gc.collect()
    return min(measure() for _ in range(repeats))
