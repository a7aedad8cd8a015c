"""What to load on a mesh: a core's specification and how its models are divided over ranks."""

from typing import Annotated

import msgspec
from msgspec import Meta

from inference_core.model_spec import CoreSpec
from inference_core.parallel.mesh import Mesh

Seconds = Annotated[float, Meta(gt=0)]


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`core.arena_bytes` is each rank's arena: block tables are the same on all of them, blocks hold its own heads.

    `uneven_splits` allows heads, layers, inner columns and vocabularies that the ranks do not divide.
    `max_micro_batches` and `min_micro_batch_tokens` bound how a step is cut for pipeline stages.
    `join_seconds`, `load_seconds`, `step_seconds`: how long ranks may take to come, to load their shares, and for one
    collective operation; whoever takes longer is taken for dead.
    """

    core: CoreSpec
    mesh: Mesh
    uneven_splits: bool = False
    max_micro_batches: Annotated[int, Meta(ge=1)] = 8
    min_micro_batch_tokens: Annotated[int, Meta(ge=1)] = 64
    join_seconds: Seconds = 120.0
    load_seconds: Seconds = 1800.0
    step_seconds: Seconds = 120.0
