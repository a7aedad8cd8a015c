"""What the tests of meshes of devices share: their specification, one process to compare with, and steps."""

from pathlib import Path
from typing import Literal

import msgspec
import torch
import torch.distributed as dist

from inference_core.device.batch import NoGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.parallel.collectives import PipelineLinks, TensorGroup
from inference_core.parallel.mesh import Mesh, MeshSpec, RankEnvironment
from inference_core.parallel.messages import RunStep
from inference_core.parallel.rank import DeviceShardLoader
from inference_core.parallel.rank_runner import RankRunner
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.parallel.meshes import share

SLAB = 4 << 20


def device_core(*models: DeviceModelSpec) -> DeviceCoreSpec:
    """Small steps, so that prompts are cut into chunks."""
    return DeviceCoreSpec(models=list(models), slab_bytes=SLAB, max_num_batched_tokens=16, max_num_seqs=4)


def device_mesh_spec(core: DeviceCoreSpec, mesh: Mesh, device: Literal["cpu", "cuda"] = "cpu") -> MeshSpec:
    """Uneven splits allowed, two micro-batches from 16 tokens on, and little patience."""
    return MeshSpec(
        core=core,
        mesh=mesh,
        device=device,
        host_bytes=1 << 30,
        uneven_splits=True,
        max_micro_batches=2,
        min_micro_batch_tokens=8,
        join_seconds=120,
        load_seconds=120,
        step_seconds=120,
    )


def four_bit(name: str, path: Path | str) -> DeviceModelSpec:
    """A model whose 4-bit groups stay packed, and nothing else is rounded."""
    return DeviceModelSpec(
        name=name, path=str(path), compute="int4", activations="float32", kv_dtype="float32", max_context=64
    )


def on_one_device(core: DeviceCoreSpec, cache: Path) -> Core:
    """The runner of a single device, which overlaps its steps and draws by itself."""

    def profile(*_: object) -> MemoryProfile:
        return MemoryProfile(total=20 * SLAB, others=0, weights=0, activations=0)

    return load_device_core(
        core,
        {model.name: open_checkpoint(Path(model.path), cache) for model in core.models},
        torch.device("cpu"),
        cache,
        profile=profile,
        make_graphs=NoGraphs,
    )


class OneRank:
    """The same models in this process, undivided, without process groups."""

    def __init__(self, core: DeviceCoreSpec, cache: Path, device: Literal["cpu", "cuda"] = "cpu") -> None:
        # Steps of any size in one piece.
        spec = device_mesh_spec(msgspec.structs.replace(core, max_num_batched_tokens=64), Mesh(), device)
        environment = RankEnvironment(
            rank=0, world_size=1, local_rank=0, local_world_size=1, master="127.0.0.1", port=0
        )
        group = TensorGroup([0], 0)
        shares = DeviceShardLoader(spec, environment, cache)
        shares.load(dist.HashStore(), group)
        self._runner = RankRunner(
            0,
            spec.mesh,
            shares.stages(16 * SLAB),
            group,
            PipelineLinks(None, None),
            max_micro_batches=1,
            min_micro_batch_tokens=1,
        )

    def logits(self, model: str, sequences: list[ScheduledSequence], rows: list[int]) -> torch.Tensor:
        logits = self._runner.run(RunStep(model, sequences, rows))
        assert logits is not None
        return logits.cpu()


def ragged_steps(a: list[int], b: list[int]) -> list[tuple[list[ScheduledSequence], list[int]]]:
    """A prompt with part of another; the rest of it with a decode; both decode. With the rows to compare."""
    first = [share("a", a, 0, 0), share("b", b[:5], 0, 4)]
    second = [share("a", [b[0]], len(a), 0), share("b", b[5:], 5, 4)]
    third = [share("a", [b[1]], len(a) + 1, 0), share("b", [a[1]], len(b), 4)]
    return [(first, [len(a) - 1, len(a) + 4]), (second, [0, len(b) - 5]), (third, [0, 1])]
