"""Stages of the device's decoder on the CPU, with slots for adapters: a whole model, or a rank's share of one."""

from pathlib import Path

import torch

from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.block_tables import BlockTables, StepBuckets
from inference_core.device.load_device_core import device_layout
from inference_core.device.step_inputs import Capacity
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_spec import Activations, DeviceModelSpec, DeviceScheme
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.rank import load_shard
from inference_core.parallel.rank_runner import DeviceStage, RankAdapters
from inference_core.parallel.shards import DividedModel, ShardCheckpoint, divide_model

SLAB, SLABS = 1 << 20, 8
CPU = torch.device("cpu")
ALONE = TensorGroup([0], 0)


def divided(
    checkpoint: Checkpoint,
    mesh: Mesh,
    *,
    slots: int = 8,
    rank: int = 16,
    compute: DeviceScheme = "dense",
    activations: Activations = "float32",
) -> DividedModel:
    """A model with a float32 cache and `slots` for adapters of up to `rank`."""
    spec = DeviceModelSpec(
        name="m",
        path="-",
        compute=compute,
        activations=activations,
        kv_dtype="float32",
        max_context=128,
        max_adapters=slots,
        max_adapter_rank=rank,
    )
    return divide_model(spec, checkpoint, mesh, uneven=True, slab_bytes=SLAB)


def stage_of(
    model: DividedModel,
    cache: Path,
    number: int = 0,
    group: TensorGroup = ALONE,
    graphs: Graphs | None = None,
) -> DeviceStage:
    """The stage of rank `number`; with `graphs` decode steps are padded and repeated."""
    part = model.shares[number]
    decoder = load_shard(model, ShardCheckpoint(model.checkpoint, part), part, CPU, cache, group)
    return DeviceStage(
        decoder.over(torch.zeros(SLABS * SLAB, dtype=torch.uint8)),
        device_layout(model.spec, decoder.config),
        BlockTables(model.layout, SLAB, rows=16, row_blocks=8),
        Capacity(tokens=512, sequences=16, draws=16, table_updates=128, adapter_slots=model.spec.max_adapters),
        graphs=graphs or NoGraphs(),
        buckets=StepBuckets() if graphs is None else StepBuckets((1, 4, 16), (32, 64), (8,)),
        staging_buffers=2,
    )


def install(model: DividedModel, stage: DeviceStage, folders: list[Path], number: int = 0) -> None:
    """The adapters in `folders`, this rank's part of each, in slots 0 and on."""
    assert stage.adapters is not None
    adapters = RankAdapters(model.config, model.shares[number], stage.adapters)
    for slot, folder in enumerate(folders):
        adapters.read(slot, folder, read_adapter(folder, model.config).digest)
        adapters.install(slot, slot)
