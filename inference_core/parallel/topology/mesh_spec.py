"""What to load on a mesh: a core's specification and how its models are divided over ranks."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.device.spec import DeviceCoreSpec
from inference_core.parallel.topology.mesh import Mesh

Seconds = Annotated[float, Meta(gt=0)]


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh of ranks that compute with the kernels of `inference_core.device`, each on its own device.

    `device`: "cuda", or "cpu" for the same through the kernels' references, slowly. `devices`: the CUDA devices of a
    machine, one per rank in order; None: 0, 1, 2 and so on. `host_bytes`: with "cpu", how much host memory a rank may
    take, in place of a card's; None: its share of the free memory. The arenas of all ranks are as large as the rank
    with the least memory allows (`core.memory_utilization`). With "cuda", `core.capture_steps` captures a
    rank's all-reduces with its kernels.

    `uneven_splits` allows heads, layers, inner columns and vocabularies that do not divide evenly.
    `max_micro_batches` and `min_micro_batch_tokens` bound how a step is cut for pipeline stages.
    `join_seconds`, `load_seconds`, `step_seconds`: timeouts for ranks to join, to load their shards, and for one
    collective operation; after it, a rank counts as lost.
    """

    core: DeviceCoreSpec
    mesh: Mesh
    device: Literal["cuda", "cpu"]
    devices: list[int] | None = None
    host_bytes: Annotated[int, Meta(gt=0)] | None = None
    uneven_splits: bool = False
    max_micro_batches: Annotated[int, Meta(ge=1)] = 8
    min_micro_batch_tokens: Annotated[int, Meta(ge=1)] = 64
    join_seconds: Seconds = 120.0
    load_seconds: Seconds = 1800.0
    step_seconds: Seconds = 120.0
