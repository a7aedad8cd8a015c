"""What a server calls for a group of several cards: one core over all of them, led by this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from inference_core.device.spec import DeviceCoreSpec
from inference_core.parallel.leader.local_mesh import LocalMesh
from inference_core.parallel.ranks.local_ranks import THIS_MACHINE, RankHosts
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.mesh_spec import DeviceMeshSpec


def load_device_mesh(
    core: DeviceCoreSpec,
    cards: Sequence[int],
    cache_dir: Path,
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    card_bytes: int | None = None,
    mesh: Mesh | None = None,
    knobs_file: Path | None = None,
    hosts: RankHosts = THIS_MACHINE,
) -> LocalMesh:
    """`core` over devices number `cards` of every machine of `hosts`: each but the first gets a process of its own.

    Call it on the thread that will step `core` of what it returns, whose `close` ends the other processes. A process
    leads one mesh at a time. `mesh` has as many ranks as there are cards in all; None shares every layer among them.
    Heads, inner columns and vocabularies that they do not divide are split unevenly. `device` "cpu" computes the same
    on the host, slowly, each rank with `card_bytes` of its memory. `knobs_file`: where changes of knobs that are to be
    kept are kept.

    Raises MeshError for cards that are not there or cannot divide a model, ModelFileError for a bad file,
    MemoryPlanError, with the arithmetic, for what does not fit on this process's card, and RankLostError, with the
    words of the rank, if another one fails.
    """
    spec = DeviceMeshSpec(
        core=core,
        mesh=mesh or Mesh(tensor=len(cards) * hosts.nodes),
        device=device,
        devices=list(cards),
        host_bytes=card_bytes,
        uneven_splits=True,
    )
    return LocalMesh(spec, cache_dir, knobs_file=knobs_file, hosts=hosts)
