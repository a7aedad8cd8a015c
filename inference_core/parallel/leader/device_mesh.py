"""Loads one core over several CUDA devices, led by this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from inference_core.device.spec import DeviceCoreSpec
from inference_core.parallel.leader.local_mesh import LocalMesh
from inference_core.parallel.ranks.local_ranks import THIS_MACHINE, RankHosts
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.mesh_spec import MeshSpec


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
    """Load `core` over devices `cards` (indices) of every machine of `hosts`; each but the first has its own process.

    Call it on the thread that will step the returned mesh's `core`; the mesh's `close` ends the other processes. A
    process leads one mesh at a time. `mesh` has as many ranks as there are cards in all; None: tensor parallel over
    all cards. Heads, inner columns and vocabularies that do not divide evenly are split unevenly. `device` "cpu"
    computes the same on the host, slowly, with `card_bytes` of memory per rank. `knobs_file`: stores knob changes that
    outlast the process.

    Raises MeshError for missing cards or a model that cannot be divided, ModelFileError for a bad file,
    MemoryPlanError, with the arithmetic, if the model does not fit on this process's card, and RankLostError, with the
    rank's error message, if another rank fails.
    """
    spec = MeshSpec(
        core=core,
        mesh=mesh or Mesh(tensor=len(cards) * hosts.nodes),
        device=device,
        devices=list(cards),
        host_bytes=card_bytes,
        uneven_splits=True,
    )
    return LocalMesh(spec, cache_dir, knobs_file=knobs_file, hosts=hosts)
