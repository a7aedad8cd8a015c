"""Each row of a batch uses its own adapter, and equals the model that has the adapter merged into its weights."""

from pathlib import Path

import pytest
import torch
from adapters import TINY, MergedCheckpoint, write_adapter

from benchmarks.core.random_checkpoint import RandomCheckpoint
from inference_core.attention import ReferenceAttention
from inference_core.execution.logits_runner import DecoderRunner, LogitsRunner
from inference_core.execution.native_runner import NativeRunner
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.loading.outliers import load_decoder
from inference_core.lora.packing import Storage, TorchAdapterBank
from inference_core.model_spec import Compute, ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

SLAB, BLOCKS = 1 << 20, 8
GREEDY = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
# Every rank modulo the kernels' tiles, modules of all projections, and some of them alone.
ADAPTERS = [
    {"rank": 1},
    {"rank": 4, "modules": ("q_proj", "v_proj")},
    {"rank": 6, "modules": ("down_proj",)},
    {"rank": 16},
    {"rank": 7, "modules": ("gate_proj",), "layers": [0, 2]},
    {"rank": 3, "use_rslora": True},
    {"rank": 8, "ranks": {"k_proj": 2, "o_proj": 5}, "rank_pattern": {"k_proj": 2, "o_proj": 5}},
    {"rank": 2, "modules": ("up_proj", "o_proj"), "lora_alpha": 1},
]
native = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def info(compute: str) -> ModelInfo:
    return ModelInfo(
        name="m", model_path="", max_context=128, vocab_size=TINY.vocab_size, weight_bytes=0, compute=compute
    )


def runner(checkpoint: Checkpoint, compute: Compute, cache: Path, *, slots: int = 8, torch_path: bool = False):
    spec = ModelSpec(name="m", path="", compute=compute, kv_dtype="float32")
    decoder, layout = load_decoder(checkpoint, compute, cache), layout_of(spec, checkpoint.config)
    arena, cos_sin = torch.zeros(4 * SLAB, dtype=torch.uint8), rotary_table(checkpoint.config, 128)
    storage: Storage = "float32" if compute == "float32" else "bfloat16"
    if not torch_path and cpu.AVAILABLE:
        native = NativeRunner(info(compute), checkpoint.config, layout, arena, SLAB, cos_sin, slots, storage)
        native.load(decoder)
        return native
    attention = ReferenceAttention(checkpoint.config, layout, arena, cos_sin)
    bank = TorchAdapterBank(checkpoint.config, slots, storage)
    return DecoderRunner(info(compute), decoder, layout, attention, SLAB, bank)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(root / str(seed), seed=seed, **fields) for seed, fields in enumerate(ADAPTERS)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def install(target: LogitsRunner, folders: list[Path]) -> None:
    for slot, folder in enumerate(folders):
        target.adapters.install(slot, target.adapters.read(folder))


def share(number: int, tokens: int, start: int = 0, adapter: int = -1, *, sampled: bool = True) -> ScheduledSequence:
    token_ids = [(31 * number + 7 * (start + i)) % TINY.vocab_size for i in range(tokens)]
    table = list(range(number * BLOCKS, (number + 1) * BLOCKS))
    return ScheduledSequence(str(number), token_ids, start, table, GREEDY if sampled else None, adapter=adapter)


# Prompts of many lengths, one of them not sampled; then decodes with a chunk among them; two sequences have none.
FIRST = [share(n, 3 + 5 * n, 0, n if n < 8 else -1, sampled=n != 5) for n in (0, 9, 1, 2, 3, 8, 4, 5, 6, 7)]
SECOND = [share(n, 9 if n == 5 else 1, 3 + 5 * n, n if n < 8 else -1) for n in (7, 1, 8, 5, 3, 2, 9, 0, 6, 4)]


def by_sequence(logits: torch.Tensor, step: list[ScheduledSequence]) -> dict[str, torch.Tensor]:
    return dict(zip([s.sequence_id for s in step if s.sample], logits.clone(), strict=True))


def both_steps(target: LogitsRunner) -> list[dict[str, torch.Tensor]]:
    return [by_sequence(target.logits(step), step) for step in (FIRST, SECOND)]


def merged_logits(
    checkpoint: Checkpoint, cache: Path, folders: list[Path], *, rounded: bool = False
) -> list[dict[str, torch.Tensor]]:
    """Of each sequence by the model that has its adapter merged, one model at a time and without any adapter."""
    wanted: list[dict[str, torch.Tensor]] = [{}, {}]
    plain = runner(checkpoint, "float32", cache, slots=0)
    for adapter in (-1, *range(8)):
        model = plain
        if adapter >= 0:
            read = runner(checkpoint, "float32", cache).adapters.read(folders[adapter])
            model = runner(MergedCheckpoint(checkpoint, read, rounded=rounded), "float32", cache, slots=0)
        for step, found in zip((FIRST, SECOND), wanted, strict=True):
            own = [s for s in step if s.adapter == adapter]
            bare = [ScheduledSequence(s.sequence_id, s.token_ids, s.start, s.block_table, s.sample) for s in own]
            found |= by_sequence(model.logits(bare), own)
    return wanted


def worst(got: list[dict[str, torch.Tensor]], want: list[dict[str, torch.Tensor]]) -> float:
    """The largest error against the spread of the logits."""
    pairs = [(g[name], w[name]) for g, w in zip(got, want, strict=True) for name in w]
    assert pairs
    return max(float((g - w).abs().max() / w.std()) for g, w in pairs)


@pytest.mark.parametrize("torch_path", [False, True])
def test_each_row_of_a_batch_with_8_adapters_equals_the_merged_model(cache, folders, torch_path):
    checkpoint = RandomCheckpoint(TINY, "BF16")
    model = runner(checkpoint, "float32", cache, torch_path=torch_path)
    install(model, folders)
    want = merged_logits(checkpoint, cache, folders)

    got = both_steps(model)

    assert worst(got, want) < 1e-4
    assert worst(merged_logits(checkpoint, cache, folders[::-1]), want) > 0.1, "the adapters must make a difference"


@native
def test_every_instruction_set_adds_the_same_adapters(cache, folders, instruction_set):
    checkpoint = RandomCheckpoint(TINY, "BF16")
    model, oracle = runner(checkpoint, "float32", cache), runner(checkpoint, "float32", cache, torch_path=True)
    install(model, folders)
    install(oracle, folders)

    assert worst(both_steps(model), both_steps(oracle)) < 1e-4


@native
@pytest.mark.parametrize("compute", ["int4-int8", "int4", "bfloat16"])
def test_over_packed_weights_rows_err_no_more_than_the_weights_scheme_does(cache, folders, compute):
    checkpoint = RandomCheckpoint(TINY, "Q4_0")
    model, plain = runner(checkpoint, compute, cache), runner(checkpoint, compute, cache, slots=0)
    install(model, folders)
    want = merged_logits(checkpoint, cache, folders, rounded=True)
    bare = [[ScheduledSequence(s.sequence_id, s.token_ids, s.start, s.block_table, s.sample) for s in step]
            for step in (FIRST, SECOND)]  # fmt: skip
    exact = runner(checkpoint, "float32", cache, slots=0)
    own_error = worst(
        [by_sequence(plain.logits(step), step) for step in bare],
        [by_sequence(exact.logits(step), step) for step in bare],
    )

    assert worst(both_steps(model), want) < 2 * own_error + 1e-4


@native
@pytest.mark.parametrize("compute", ["int4-int8", "float32"])
def test_a_row_has_the_same_bits_alone_mixed_in_chunks_and_on_any_number_of_threads(cache, folders, compute):
    checkpoint = RandomCheckpoint(TINY, "Q4_0")
    model = runner(checkpoint, compute, cache)
    install(model, folders)
    want = both_steps(model)

    for threads in (1, 3):
        cpu.set_threads(threads)
        again = both_steps(model)
        assert all(torch.equal(a[name], w[name]) for a, w in zip(again, want, strict=True) for name in w)
    cpu.set_threads(None)
    for sequence in FIRST:
        number, tokens = int(sequence.sequence_id), len(sequence.token_ids)
        for start in range(0, tokens - 1, 4):
            model.logits([share(number, min(4, tokens - 1 - start), start, sequence.adapter, sampled=False)])
        alone = model.logits([share(number, 1, tokens - 1, sequence.adapter)])[0]
        if sequence.sample:
            assert torch.equal(alone, want[0][sequence.sequence_id]), sequence.sequence_id


@native
@pytest.mark.parametrize("compute", ["int4-int8", "bfloat16"])
def test_rows_without_an_adapter_have_the_bits_of_a_model_without_adapters(cache, folders, compute):
    checkpoint = RandomCheckpoint(TINY, "Q4_0")
    model, plain = runner(checkpoint, compute, cache), runner(checkpoint, compute, cache, slots=0)
    install(model, folders)

    got = both_steps(model)

    for step, logits in zip((FIRST, SECOND), got, strict=True):
        own = [s for s in step if s.adapter < 0]
        want = by_sequence(plain.logits(own), own)
        assert own
        assert all(torch.equal(logits[name], row) for name, row in want.items())


@pytest.mark.parametrize("torch_path", [False, True])
def test_a_slot_that_holds_nothing_is_refused_before_anything_is_computed(cache, folders, torch_path):
    model = runner(RandomCheckpoint(TINY, "BF16"), "float32", cache, torch_path=torch_path)
    install(model, folders[:2])
    model.adapters.clear(1)

    for slot in (1, 7):
        with pytest.raises(IndexError, match=f"slot {slot} holds no adapter"):
            model.logits([share(0, 3), share(1, 3, adapter=slot)])
