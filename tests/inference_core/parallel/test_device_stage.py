"""Shards computed by the device's decoder, side by side in one process, equal the whole model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.block_tables import BlockTables, StepBuckets
from inference_core.device.load_device_core import device_layout
from inference_core.device.step_inputs import Capacity
from inference_core.execution.block_memory import allocate_arena
from inference_core.linear.device import DeviceScheme
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loading.load_core import runner_of
from inference_core.model_config import ModelConfig
from inference_core.model_spec import CoreSpec, DeviceModelSpec, ModelSpec
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.rank import load_shard
from inference_core.parallel.rank_runner import DeviceStage
from inference_core.parallel.shards import DividedModel as Model
from inference_core.parallel.shards import ShardCheckpoint, divide_model
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.device.tiny_device import RecordingGraphs
from tests.inference_core.parallel.meshes import share
from tests.inference_core.parallel.side_by_side import SHAPES, Drawn, in_turns, steps

CPU = torch.device("cpu")
SLAB, SLABS = 1 << 20, 4
CAPACITY = Capacity(tokens=32, sequences=4, draws=8, table_updates=16)


def divided(checkpoint: Checkpoint, compute: DeviceScheme, mesh: Mesh) -> Model:
    spec = DeviceModelSpec(
        name="m", path="-", compute=compute, activations="float32", kv_dtype="float32", max_context=128
    )
    return divide_model(spec, checkpoint, mesh, uneven=True, slab_bytes=SLAB)


def stage_of(model: Model, number: int, cache: Path, group: TensorGroup, graphs: Graphs | None = None) -> DeviceStage:
    """The stage of rank `number`, over an arena of its own; with `graphs` decode steps are padded and repeated."""
    part = model.shares[number]
    decoder = load_shard(model, ShardCheckpoint(model.checkpoint, part), part, CPU, cache, group)
    return DeviceStage(
        decoder.over(torch.zeros(SLABS * SLAB, dtype=torch.uint8)),
        device_layout(model.spec, decoder.config),
        BlockTables(model.layout, SLAB, rows=CAPACITY.sequences, row_blocks=8),
        CAPACITY,
        graphs=graphs or NoGraphs(),
        buckets=StepBuckets() if graphs is None else StepBuckets((1, 4), (32,), (4,)),
        staging_buffers=2,
    )


def logits_of(model: Model, cache: Path, make_graphs: Callable[[], Graphs] | None = None) -> list[torch.Tensor]:
    """Logits of every step's tokens from tensor-parallel ranks, side by side."""

    def compute(rank: int, group: TensorGroup) -> list[torch.Tensor]:
        stage = stage_of(model, rank, cache, group, make_graphs() if make_graphs else None)
        with torch.inference_mode():
            return [stage.head(stage.compute(step)) for step in steps()]

    return [torch.cat(parts, 1) for parts in zip(*in_turns(len(model.shares), compute), strict=True)]


def check(given: list[torch.Tensor], wanted: list[torch.Tensor], bound: float) -> None:
    for mine, whole in zip(given, wanted, strict=True):
        assert whole.std() > 0.1
        assert (mine - whole).abs().max().item() <= bound * whole.abs().max().item()


def oracle(config: ModelConfig, checkpoint: Checkpoint, cache: Path) -> list[torch.Tensor]:
    """The CPU's own runner."""
    spec = ModelSpec(name="m", path="-", compute="float32", kv_dtype="float32", max_context=128)
    core = CoreSpec(models=[spec], arena_bytes=SLABS * SLAB, slab_bytes=SLAB)
    whole = runner_of(spec, checkpoint, core, allocate_arena(core.arena_bytes), cache)
    return [whole.logits(step, list(range(sum(len(s.token_ids) for s in step)))).clone() for step in steps()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("name", SHAPES)
def test_device_shards_of_any_shape_give_the_logits_of_the_whole(name: str, ranks: int, tmp_path: Path) -> None:
    checkpoint = Drawn(SHAPES[name], "BF16")
    model = divided(checkpoint, "dense", Mesh(tensor=ranks))
    check(logits_of(model, tmp_path), oracle(SHAPES[name], checkpoint, tmp_path), 2e-5)


# Rows of activations are rounded to 8 bits by the largest of a shard's columns, not of all of them.
@pytest.mark.parametrize(("compute", "bound"), [("int4", 2e-5), ("int8", 4e-2), ("fp8", 2e-1), ("fp8-blocks", 2e-1)])
def test_quantised_shards_compute_as_the_quantised_whole_does(
    compute: DeviceScheme, bound: float, tmp_path: Path
) -> None:
    checkpoint = Drawn(SHAPES["qwen2"], "Q4_0" if compute == "int4" else "BF16")
    whole = logits_of(divided(checkpoint, compute, Mesh()), tmp_path)
    check(logits_of(divided(checkpoint, compute, Mesh(tensor=2)), tmp_path), whole, bound)


def test_decode_steps_that_are_padded_and_repeated_give_the_same_logits(tmp_path: Path) -> None:
    """Ranks repeat their sums with everything else; what is not on the device is not heard."""
    checkpoint = Drawn(SHAPES["llama"], "BF16")
    eager = logits_of(divided(checkpoint, "dense", Mesh(tensor=2)), tmp_path)
    # BLAS may add up the rows of a padded step in another order: float32 rounding.
    check(logits_of(divided(checkpoint, "dense", Mesh(tensor=2)), tmp_path, RecordingGraphs), eager, 5e-6)


def test_a_repeated_stage_takes_what_the_stage_before_has_sent(tmp_path: Path) -> None:
    checkpoint, alone = Drawn(SHAPES["tied"], "BF16"), TensorGroup([0], 0)
    whole = stage_of(divided(checkpoint, "dense", Mesh()), 0, tmp_path, alone)
    model = divided(checkpoint, "dense", Mesh(pipeline=2))
    first, last = (stage_of(model, number, tmp_path, alone, RecordingGraphs()) for number in (0, 1))
    with torch.inference_mode():
        for position, token in enumerate((5, 90, 3, 41)):
            step = [share("a", [token], position, 0), share("b", [token + 1], position, 4)]
            wanted = whole.head(whole.compute(step))
            given = last.head(last.compute(step, first.compute(step)))
            torch.testing.assert_close(given, wanted, atol=1e-5, rtol=1e-5)


class OneMemory(RecordingGraphs):
    """As those of CUDA do, they write the result of a key to the same memory whenever it is repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[int, torch.Tensor] = {}

    def run(self, key: int, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        result = super().run(key, work)
        return self.results.setdefault(key, result.clone()).copy_(result)


def test_what_a_stage_returns_outlives_the_next_step_of_its_size(tmp_path: Path) -> None:
    """It may still be on its way to the next stage."""
    model = divided(Drawn(SHAPES["llama"], "BF16"), "dense", Mesh(pipeline=2))
    first = stage_of(model, 0, tmp_path, TensorGroup([0], 0), OneMemory())
    with torch.inference_mode():
        sent = first.compute([share("a", [5], 0, 0)])
        before = sent.clone()
        first.compute([share("b", [7], 0, 4)])
    assert torch.equal(sent, before)


def test_copied_blocks_are_read_where_they_are_now(tmp_path: Path) -> None:
    """The list of a sequence whose blocks are moved stays the same list, with other blocks in it."""
    model, alone = divided(Drawn(SHAPES["llama"], "BF16"), "dense", Mesh()), TensorGroup([0], 0)
    stage, table = stage_of(model, 0, tmp_path, alone), [0, 1, 2]
    last = ScheduledSequence("a", [9], 20, table, None)
    with torch.inference_mode():
        stage.compute([ScheduledSequence("a", list(range(1, 21)), 0, table, None)])
        here = stage.compute([last]).clone()
        stage.copy_blocks([(0, 20), (1, 21)])
        table[:2] = [20, 21]
        # What stays behind belongs to somebody else now.
        stage.compute([share("b", list(range(40, 60)), 0, 0)])
        there = stage.compute([last])
    assert torch.equal(here, there)
