"""Shards of many shapes, side by side in one process, equal the whole: biases, head norms, windows, few KV heads."""

from pathlib import Path

import pytest
import torch

from inference_core.attention.batches import BlockAddresses
from inference_core.attention.cpu import CpuAttention
from inference_core.attention.reference import ReferenceAttention
from inference_core.kv_cache.arena import allocate_arena
from inference_core.loaders.random_checkpoint import RandomCheckpoint
from inference_core.loading.load_core import layout_of, runner_of
from inference_core.model_config import ModelConfig
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.models.rotary import rotary_table
from inference_core.native import cpu
from inference_core.parallel.communication.collectives import TensorGroup
from inference_core.parallel.shards.cpu_shard_loader import load_weights
from inference_core.parallel.shards.shard_checkpoint import ShardCheckpoint, split_units
from inference_core.parallel.stages.cpu_stage import CpuStage
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.splits import divide
from tests.inference_core.parallel.side_by_side import SHAPES, Drawn, in_turns, steps


def sharded(
    checkpoint: RandomCheckpoint, spec: ModelSpec, core: CoreSpec, ranks: int, cache: Path
) -> list[torch.Tensor]:
    """Logits of every step's tokens, from `ranks` shards."""
    shares = divide(checkpoint.config, Mesh(tensor=ranks), split_units(checkpoint), uneven=True)
    shards = [ShardCheckpoint(checkpoint, each) for each in shares]
    stride = max(layout_of(spec, shard.config).block_bytes for shard in shards)

    def compute(rank: int, group: TensorGroup) -> list[torch.Tensor]:
        shard, part = shards[rank], shares[rank]
        layout = layout_of(spec, shard.config)
        backend = CpuAttention if cpu.AVAILABLE else ReferenceAttention
        attention = backend(shard.config, layout, allocate_arena(core.arena_bytes), rotary_table(shard.config, 128))
        addresses = BlockAddresses(layout.block_size, stride, core.slab_bytes)
        stage = CpuStage(load_weights(shard, part, spec, cache), attention, addresses, group)
        with torch.inference_mode():
            return [stage.head(stage.compute(step)) for step in steps()]

    return [torch.cat(parts, 1) for parts in zip(*in_turns(ranks, compute), strict=True)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", SHAPES)
def test_shards_of_any_shape_give_the_logits_of_the_whole(name: str, ranks: int, tmp_path: Path) -> None:
    check(SHAPES[name], ranks, "float32", tmp_path, bound=2e-5)


@pytest.mark.parametrize("compute", ["bfloat16", "int4-int8", "int4"])
def test_shards_compute_in_every_precision_as_the_whole_does(compute: Compute, tmp_path: Path) -> None:
    """Groups of 32 activations share a scale, and none is parted, so that INT8 rounds alike in shards."""
    check(SHAPES["qwen2"], 2, compute, tmp_path, bound=2e-5 if compute == "int4" else 2e-2)


def check(config: ModelConfig, ranks: int, compute: Compute, cache: Path, bound: float) -> None:
    spec = ModelSpec(name="m", path="-", compute=compute, kv_dtype="float32", max_context=128)
    core = CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 20)
    checkpoint = Drawn(config, "Q4_0" if compute.startswith("int4") else "BF16")
    whole = runner_of(spec, checkpoint, core, allocate_arena(core.arena_bytes), cache)
    for step, given in zip(steps(), sharded(checkpoint, spec, core, ranks, cache), strict=True):
        wanted = whole.logits(step, list(range(sum(len(s.token_ids) for s in step))))
        assert wanted.std() > 0.1
        assert (given - wanted).abs().max().item() <= bound * wanted.abs().max().item()
