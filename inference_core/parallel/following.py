"""A rank that follows: joins its leader, loads its share, executes orders until told to stop."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from inference_core.errors import RankLostError
from inference_core.loading import use_threads
from inference_core.parallel.connections import Connections
from inference_core.parallel.control import LeaderLink
from inference_core.parallel.environment import RankEnvironment
from inference_core.parallel.leading import SPEC_KEY, leader_key
from inference_core.parallel.mesh_spec import MeshSpec
from inference_core.parallel.messages import CopyBlocks, Failed, Ready, RunStep, Stop, UseThreads
from inference_core.parallel.rank_runner import RankRunner
from inference_core.parallel.share_loading import divide_models, load_shares

_GRACE_SECONDS = 3.0


def read_spec(store: Any) -> MeshSpec:
    """What rank 0 has published; waits for it."""
    return msgspec.json.decode(store.get(SPEC_KEY), type=MeshSpec)


def follow(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path) -> None:
    """Serve as one rank until the leader says stop.

    Raises RankLostError when the leader is gone; of anything else that goes wrong here it is told before it is raised.
    """
    replica = spec.mesh.position(environment.rank).replica
    link = LeaderLink(store.get(leader_key(replica)).decode(), environment.rank, spec.join_seconds)
    threading.Thread(target=_end_with_leader, args=[link], daemon=True).start()
    try:
        _serve(environment, store, spec, cache_dir, link)
    except BaseException as error:
        lost = isinstance(error, RankLostError)
        with contextlib.suppress(RankLostError):  # the leader is the one that is gone
            link.report(Failed(environment.rank, str(error) if lost else f"{type(error).__name__}: {error}", lost))
        raise
    finally:
        link.close()


def _end_with_leader(link: LeaderLink) -> None:
    """However long a collective would go on waiting: without its leader this process is of no use to anybody."""
    link.wait_until_gone()
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _serve(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path, link: LeaderLink) -> None:
    connections = Connections(environment, spec.mesh, store, torch.device("cpu"), spec.step_seconds)
    models = divide_models(spec, cache_dir)
    shares = load_shares(spec, models, environment, store, connections.group, cache_dir)
    runner = RankRunner(
        environment.rank,
        spec.mesh,
        shares,
        connections.group,
        connections.links,
        max_micro_batches=spec.max_micro_batches,
        min_micro_batch_tokens=spec.min_micro_batch_tokens,
    )
    link.report(Ready(environment.rank))
    while True:
        order = link.next_order()
        match order:
            case RunStep():
                runner.run(order)
            case CopyBlocks():
                runner.copy_blocks(order)
            case UseThreads():
                use_threads(order.threads)
            case Stop():
                connections.close()
                return
