"""What to load on a mesh: a core's specification and how its models are divided over ranks."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.device.spec import DeviceCoreSpec
from inference_core.model_spec import CoreSpec
from inference_core.parallel.topology.mesh import Mesh

Seconds = Annotated[float, Meta(gt=0)]


class MeshOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What meshes of every kind of device agree on.

    `uneven_splits` allows heads, layers, inner columns and vocabularies that the ranks do not divide.
    `max_micro_batches` and `min_micro_batch_tokens` bound how a step is cut for pipeline stages.
    `join_seconds`, `load_seconds`, `step_seconds`: how long ranks may take to come, to load their shares, and for one
    collective operation; whoever takes longer is taken for dead.
    """

    mesh: Mesh
    uneven_splits: bool = False
    max_micro_batches: Annotated[int, Meta(ge=1)] = 8
    min_micro_batch_tokens: Annotated[int, Meta(ge=1)] = 64
    join_seconds: Seconds = 120.0
    load_seconds: Seconds = 1800.0
    step_seconds: Seconds = 120.0


class MeshSpec(MeshOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh of CPU ranks. `core.arena_bytes` is each rank's arena: block tables are the same on all of them, blocks
    hold its own heads."""

    core: CoreSpec


class DeviceMeshSpec(MeshOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh of ranks that compute with the kernels of `inference_core.device`, each on a device of its own.

    `device`: "cuda", or "cpu" for the same through the kernels' references, slowly. `devices`: which CUDA devices of a
    machine its ranks take, one each in their order; None is 0, 1, 2 and so on. `host_bytes`: with
    "cpu", how much of the host's memory a rank may take, as if it were a card's; None is its part of what is free.
    The
    arenas of all ranks are as large as the rank with the least memory allows (`core.memory_utilization`).
    `capture_steps`: repeat decode steps as CUDA graphs, sums over the ranks included.
    """

    core: DeviceCoreSpec
    device: Literal["cuda", "cpu"]
    devices: list[int] | None = None
    host_bytes: Annotated[int, Meta(gt=0)] | None = None
    capture_steps: bool = False


AnyMeshSpec = MeshSpec | DeviceMeshSpec


class _Kind(msgspec.Struct):
    device: str | None = None


def decode_mesh_spec(data: bytes) -> AnyMeshSpec:
    """From JSON: with a `device` a `DeviceMeshSpec`, else a `MeshSpec`. Raises msgspec.DecodeError."""
    if msgspec.json.decode(data, type=_Kind).device is None:
        return msgspec.json.decode(data, type=MeshSpec)
    return msgspec.json.decode(data, type=DeviceMeshSpec)
