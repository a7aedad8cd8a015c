"""Shards of many shapes, side by side in one process, equal the whole model: biases, head norms, windows, few KV heads.

Ranks are threads that take turns: one computes until it needs a sum, then the next one does. Nothing of a shard knows
the difference; processes are for `test_mesh_equivalence`.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from inference_core.attention.batches import BlockAddresses
from inference_core.attention.cpu import CpuAttention
from inference_core.attention.reference import ReferenceAttention
from inference_core.kv_arena import allocate_arena
from inference_core.loaders.decoder_tensors import Shape
from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.loaders.random_checkpoint import RandomCheckpoint
from inference_core.loading import layout_of, runner_of
from inference_core.model_config import ModelConfig
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.models.rotary import rotary_table
from inference_core.native import cpu
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.cpu_stage import CpuStage
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.shard_checkpoint import ShardCheckpoint, split_units
from inference_core.parallel.share_loading import load_weights
from inference_core.parallel.splits import divide
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.parallel.meshes import share

BASE = ModelConfig(
    architecture="llama", vocab_size=96, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=8,
    num_kv_heads=4, head_dim=32, max_position=256, rms_eps=1e-5, rope_theta=1e4,
)  # fmt: skip
SHAPES = {
    "llama": BASE,
    "tied": replace(BASE, tie_embeddings=True),
    "qwen2": replace(BASE, architecture="qwen2", qkv_bias=True),
    "qwen3": replace(BASE, architecture="qwen3", qk_norm=True),
    "window": replace(BASE, architecture="mistral", sliding_window=7),
    "one-kv-head": replace(BASE, num_kv_heads=1),
    "as-many-kv-heads": replace(BASE, num_kv_heads=8),
    "nine-heads": replace(BASE, num_heads=9, num_kv_heads=3, qkv_bias=True),
}
PROMPT = [5, 90, 3, 41, 77, 2, 64, 18, 33, 9, 81, 50]


class Drawn(RandomCheckpoint):
    """With random norms and biases, too: ones and zeros would hide where they go."""

    def _tensor(self, name: str, shape: Shape) -> PackedTensor:
        if len(shape) == 2:
            return super()._tensor(name, shape)
        rng = np.random.default_rng(len(name) + shape[0])
        values = rng.normal(0, 0.3, shape) if name.endswith("bias") else rng.uniform(0.5, 1.5, shape)
        return PackedTensor("F32", shape, values.astype(np.float32))


class Turns:
    """Who computes holds the condition; a sum is there when all have given their part."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.condition = threading.Condition()
        self.parts: list[torch.Tensor] = []
        self.sums: list[torch.Tensor] = []
        self.failed = False


class TurnsGroup(TensorGroup):
    def __init__(self, turns: Turns, rank: int) -> None:
        super().__init__(list(range(turns.ranks)), rank)
        self._turns = turns

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        turns, number = self._turns, self.calls["all_reduce"]
        self.calls["all_reduce"] += 1
        turns.parts.append(part.clone())
        if len(turns.parts) == turns.ranks:
            turns.sums.append(torch.stack(turns.parts).sum(0))
            turns.parts = []
            turns.condition.notify_all()
        assert turns.condition.wait_for(lambda: turns.failed or len(turns.sums) > number, timeout=60)
        assert not turns.failed, "another rank failed"
        return part.copy_(turns.sums[number])


def steps() -> list[list[ScheduledSequence]]:
    """A prompt in two chunks beside another, then a decode of each."""
    return [
        [share("a", PROMPT[:7], 0, 0), share("b", PROMPT[::-1], 0, 4)],
        [share("a", PROMPT[7:], 7, 0), share("b", [11], 12, 4)],
        [share("a", [60], 12, 0), share("b", [12], 13, 4)],
    ]


def sharded(checkpoint: RandomCheckpoint, spec: ModelSpec, core: CoreSpec, ranks: int, cache: Path) -> list[Any]:
    """Logits of every step's tokens, from `ranks` shards."""
    shares = divide(checkpoint.config, Mesh(tensor=ranks), split_units(checkpoint), uneven=True)
    shards = [ShardCheckpoint(checkpoint, each) for each in shares]
    stride = max(layout_of(spec, shard.config).block_bytes for shard in shards)
    turns = Turns(ranks)
    logits: dict[tuple[int, int], torch.Tensor] = {}

    def compute(rank: int) -> None:
        shard, part = shards[rank], shares[rank]
        layout = layout_of(spec, shard.config)
        backend = CpuAttention if cpu.AVAILABLE else ReferenceAttention
        attention = backend(shard.config, layout, allocate_arena(core.arena_bytes), rotary_table(shard.config, 128))
        addresses = BlockAddresses(layout.block_size, stride, core.slab_bytes)
        weights = load_weights(shard, part, spec, cache)
        stage = CpuStage(weights, attention, addresses, TurnsGroup(turns, rank))
        with torch.inference_mode():
            for number, step in enumerate(steps()):
                logits[number, rank] = stage.head(stage.compute(stage.embed(step), step))

    def take_turns(rank: int) -> None:
        with turns.condition:
            try:
                compute(rank)
            except BaseException:
                turns.failed = True
                turns.condition.notify_all()
                raise

    threads = [threading.Thread(target=take_turns, args=[rank]) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [torch.cat([logits[number, rank] for rank in range(ranks)], 1) for number in range(len(steps()))]


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
