"""Models whose window layers hold blocks of their own answer as with a full cache: equal tokens and bits of logits."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from benchmarks.core.random_checkpoint import RandomCheckpoint
from inference_core.engine.core import Core
from inference_core.execution.block_memory import allocate_arena
from inference_core.execution.native_runner import NativeRunner
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loading.load_core import runner_of
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from inference_core.protocol.kv_blocks import BlockChain

pytestmark = [
    pytest.mark.properties,
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
]
SLAB = 32768
PLAIN = ModelConfig(
    architecture="mistral", vocab_size=208, hidden_size=64, intermediate_size=96, num_layers=4, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position=1024, rms_eps=1e-5, rope=RotaryEmbedding(theta=1e4),
)  # fmt: skip
CONFIGS = {
    "gemma2": msgspec.structs.replace(
        PLAIN, architecture="gemma2", embedding_scale=8.0, activation="gelu-tanh", post_norm=True,
        attention=AttentionFeatures(sliding_window=40, window_layers=(0, 2), softcap=3.0),
        final_softcap=2.0, tie_embeddings=True,
    ),
    "gemma3": msgspec.structs.replace(
        PLAIN, architecture="gemma3_text", num_layers=8, embedding_scale=8.0, activation="gelu-tanh", post_norm=True,
        attention=AttentionFeatures(qk_norm=True, sliding_window=32, window_layers=(0, 1, 2, 3, 4, 6, 7)),
        rope=RotaryEmbedding(theta=1e4, local_theta=1e3),
    ),
    "mistral": msgspec.structs.replace(PLAIN, attention=AttentionFeatures(sliding_window=50)),
}  # fmt: skip
SYSTEM = [(7 * i) % 200 for i in range(150)]
Answers = dict[tuple[str, int], tuple[list[int], list[float]]]


class RecordedCore:
    """A core of one random model, and the logits that it drew from, by sequence and position."""

    def __init__(
        self, config: ModelConfig, cache: Path, *, groups: bool, compute: Compute = "bfloat16",
        kv_dtype: CpuKVDtype = "bfloat16", slabs: int = 200, knobs: Knobs | None = None,
    ) -> None:  # fmt: skip
        names = ("m", "draft")
        specs = [
            ModelSpec(name=n, path=n, compute=compute, kv_dtype=kv_dtype, window_groups=groups, max_adapters=0)
            for n in names
        ]
        whole = CoreSpec(models=specs, arena_bytes=slabs * SLAB, slab_bytes=SLAB)
        arena = allocate_arena(whole.arena_bytes)
        kind = "Q4_0" if compute == "int4-int8" else "BF16"
        runners = {s.name: runner_of(s, RandomCheckpoint(config, kind), whole, arena, cache) for s in specs}
        self.runner = runners["m"]
        assert isinstance(self.runner, NativeRunner)
        assert bool(self.runner.layout.window) == groups
        self.logits: dict[tuple[str, int], bytes] = {}
        self.draws = 0
        self._compute, self.runner.logits = self.runner.logits, self._logits  # type: ignore[method-assign]
        # Logits of steps within a call are not seen.
        knobs = msgspec.structs.replace(knobs or Knobs(), decode_steps=1)
        self.core = Core(
            runners, arena_bytes=whole.arena_bytes, slab_bytes=SLAB, knobs=knobs, seed=3, drafts={"m": "draft"}
        )
        self.answers: Answers = {}

    def _logits(self, sequences, rows=None):
        logits = self._compute(sequences, rows)
        if rows is None:
            drawing = [s for s in sequences if s.sample is not None]
            for sequence, row in zip(drawing, logits, strict=True):
                key = (sequence.sequence_id, sequence.start + len(sequence.token_ids))
                bits = row.numpy().tobytes()
                assert self.logits.setdefault(key, bits) == bits, "the same token was computed with other bits"
        return logits

    @property
    def scheduler(self):
        return self.core._models["m"].scheduler

    def add(
        self, name: str, prompt: list[int], max_tokens: int = 40, n: int = 1, temperature: float = 0.0,
        priority: int = 1,
    ) -> None:  # fmt: skip
        sampling = SamplingParams(
            temperature=temperature, seed=5, max_tokens=max_tokens, ignore_eos=True, logprobs=0, top_p=0.9
        )
        self.core.add(
            AddRequest(request_id=name, model="m", prompt_token_ids=prompt, sampling=sampling, n=n, priority=priority)
        )

    def drain(self, steps: int = 10_000) -> Answers:
        while self.core.has_work and (steps := steps - 1) >= 0:
            for output in self.core.step():
                tokens, logprobs = self.answers.setdefault((output.request_id, output.index), ([], []))
                tokens += output.token_ids
                logprobs += [each.logprob for each in output.logprobs or []]
                assert output.finish_reason in (None, "length"), output.error
            self.core.check_integrity()
        return self.answers


def ask(core: RecordedCore, names: Iterable[str] = "abcdef") -> Answers:
    """Prompts that share a long prefix, of lengths at and between the borders of blocks and windows; those that come
    later go first."""
    for i, name in enumerate(names):
        tail = [(11 * i + 3 * k) % 200 for k in range(20 * i + i % 3)]
        core.add(name, SYSTEM[: 150 - 7 * i] + tail, 30 + 10 * i, 2 if i == 2 else 1, 0.8 * (i % 2), 2 - i // 2)
        core.drain(25)
    core.drain()
    # Conversations go on behind their answers.
    for name in "ac":
        core.add(f"{name}-2", SYSTEM + core.answers[name, 0][0] + [9, 8, 7])
    return core.drain()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


def full_cache(name: str, cache: Path, compute: Compute, kv_dtype: CpuKVDtype) -> RecordedCore:
    core = RecordedCore(CONFIGS[name], cache, groups=False, compute=compute, kv_dtype=kv_dtype)
    ask(core)
    return core


FORMATS: list[tuple[Compute, CpuKVDtype]] = [("bfloat16", "bfloat16"), ("int4-int8", "int8"), ("float32", "float32")]


@pytest.mark.parametrize(("compute", "kv_dtype"), FORMATS)
@pytest.mark.parametrize("name", CONFIGS)
def test_answers_and_logits_have_the_bits_of_a_full_cache(
    name: str, compute: Compute, kv_dtype: CpuKVDtype, cache: Path
) -> None:
    whole = full_cache(name, cache, compute, kv_dtype)
    calm = RecordedCore(CONFIGS[name], cache, groups=True, compute=compute, kv_dtype=kv_dtype)
    # Just what the longest request needs, in small chunks: sequences are preempted, recomputed and copied back.
    knobs = Knobs(prefill_chunk=23, max_num_batched_tokens=40, host_cache_blocks=400, max_num_seqs=2)
    block = calm.runner.layout
    slabs = -(-calm.scheduler.pool.blocks_held(330) // block.blocks_per_slab(SLAB)) + 1
    short = RecordedCore(
        CONFIGS[name], cache, groups=True, compute=compute, kv_dtype=kv_dtype, slabs=slabs, knobs=knobs
    )
    # Copies are never slower than computing is believed to be.
    short.scheduler.pool.host.set_compute_cost = lambda seconds: None
    for core in (calm, short):
        assert ask(core) == whole.answers
        assert core.logits == whole.logits
        assert core.scheduler.totals.prefix_hit_tokens > 0
    assert short.scheduler.totals.preemptions > 0
    assert short.scheduler.pool.host.totals.back_blocks > 0


@pytest.mark.parametrize("way", ["prompt_lookup", "draft_model"])
@pytest.mark.parametrize("name", CONFIGS)
def test_drafts_that_are_rejected_leave_the_window_as_it_was(name: str, way: str, cache: Path) -> None:
    whole = full_cache(name, cache, "bfloat16", "bfloat16")
    core = RecordedCore(CONFIGS[name], cache, groups=True)
    core.core.set_knobs({"lookup_ngram": 1, "max_draft_tokens": 30, "draft_control": "fixed"})
    core.core.set_knobs({"speculation": way}, "m")
    assert ask(core) == whole.answers
    stats = core.core._models["m"].speculator.stats()
    assert sum(stats.accepted) > 0
    if way == "prompt_lookup":
        assert sum(stats.proposed) > sum(stats.accepted)


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_from_another_core_give_the_same_logits(name: str, cache: Path) -> None:
    whole = full_cache(name, cache, "bfloat16", "bfloat16")
    source, target = (RecordedCore(CONFIGS[name], cache, groups=True) for _ in range(2))
    source.add("a", SYSTEM, 1)
    source.drain()
    chain, most = BlockChain(model="m", token_ids=SYSTEM), (len(SYSTEM) - 1) // 16
    first = 0
    while first < most:
        frame = source.core.export_blocks(chain, first, 40_000)
        held = target.core.import_blocks(chain, frame)
        first += len(frame.blocks)
    assert held == most
    ask(target)
    assert target.logits == whole.logits
    assert target.scheduler.totals.prefix_hit_tokens >= most * 16


@pytest.mark.parametrize("name", CONFIGS)
def test_a_running_sequence_holds_no_more_than_its_windows_see(name: str, cache: Path) -> None:
    core = RecordedCore(CONFIGS[name], cache, groups=True)
    pool = core.scheduler.pool
    windows = pool.windows
    assert windows is not None
    core.add("a", [(5 * i) % 200 for i in range(900)], 60)
    held = []
    while core.core.has_work:
        core.core.step()
        if core.scheduler.running and (sequence := next(iter(core.scheduler.running.values()))).has_drawn:
            behind = -(-windows.window // 16) + 1
            held.append((pool.num_referenced, len(sequence.kv.block_table), behind))
    full = 1 if windows.keeps_all else 0
    beside = windows.num_tables - full
    # What a long chunk has needed goes with the first block behind it.
    for referenced, positions, behind in held[20:]:
        assert referenced <= full * positions + beside * behind
        assert referenced * pool.block_bytes < 0.75 * positions * pool.block_bytes * windows.num_tables
    assert len(held) > 40
    assert not pool.num_referenced


def test_windows_that_save_nothing_leave_blocks_of_all_layers(cache: Path) -> None:
    config = CONFIGS["gemma2"]
    attention = msgspec.structs.replace(config.attention, sliding_window=1024)
    config = msgspec.structs.replace(config, attention=attention)
    spec = ModelSpec(name="m", path="m", compute="bfloat16")
    whole = CoreSpec(models=[spec], arena_bytes=SLAB, slab_bytes=SLAB)
    runner = runner_of(spec, RandomCheckpoint(config, "BF16"), whole, allocate_arena(SLAB), cache)
    assert not runner.layout.window
    assert runner.layout.num_layers == 4
