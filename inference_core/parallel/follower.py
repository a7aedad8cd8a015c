"""A follower rank: joins its leader, loads its shard, and executes commands until `Stop`."""

import contextlib
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError, RankLostError
from inference_core.parallel.control import LeaderLink
from inference_core.parallel.leader import LEADER_KEY, SPEC_KEY, no_check
from inference_core.parallel.mesh import MeshSpec, RankEnvironment
from inference_core.parallel.messages import (
    AdapterRead,
    AllocateArena,
    ArenaCapacity,
    ClearSlot,
    CopyBlocks,
    Divided,
    Failed,
    ForgetAdapter,
    InstallAdapter,
    OffloadBlocks,
    ProfileMemory,
    ReadAdapter,
    Ready,
    ReceivedTables,
    RestoreBlocks,
    StepCommand,
    Stop,
    UseThreads,
)
from inference_core.parallel.rank import Rank

_GRACE_SECONDS = 3.0


def read_spec(store: Any) -> MeshSpec:
    """Wait for the specification that rank 0 publishes, and return it."""
    return msgspec.json.decode(store.get(SPEC_KEY), type=MeshSpec)


def follow(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path) -> None:
    """Serve as one rank until the leader sends `Stop`.

    Raises RankLostError when the leader is gone. Any other error is reported to the leader and then raised.
    """
    link = LeaderLink(store.get(LEADER_KEY).decode(), environment.rank, spec.join_seconds)
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
    """End this process soon after its leader, even if a collective is still waiting."""
    link.wait_until_gone()
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _serve(environment: RankEnvironment, store: Any, spec: MeshSpec, cache_dir: Path, link: LeaderLink) -> None:
    rank = Rank(environment, spec, cache_dir)
    link.report(Divided(environment.rank))
    rank.connect(store)
    link.report(Ready(environment.rank, rank.load(store)))
    tables: defaultdict[str, ReceivedTables] = defaultdict(ReceivedTables)
    while True:
        command = link.next_command()
        match command:
            case StepCommand():
                rank.runner.run(tables[command.model].step(command))
            case CopyBlocks():
                rank.runner.copy_blocks(command)
            case ProfileMemory():
                link.report(ArenaCapacity(environment.rank, rank.arena_capacity(no_check)))
            case AllocateArena():
                rank.allocate_arena(command.arena_bytes)
            case OffloadBlocks():
                rank.runner.offload_blocks(command)
            case RestoreBlocks():
                rank.runner.restore_blocks(command)
            case ReadAdapter():
                link.report(AdapterRead(environment.rank, _refusal(rank, command)))
            case InstallAdapter():
                rank.runner.install_adapter(command)
            case ClearSlot():
                rank.runner.clear_slot(command)
            case ForgetAdapter():
                rank.runner.forget_adapter(command)
            case UseThreads():
                rank.loader.use_threads(command.threads)
            case Stop():
                rank.connections.close()
                return


def _refusal(rank: Rank, command: ReadAdapter) -> str | None:
    """Read an adapter. Returns the reason if this rank cannot serve it, else None."""
    try:
        rank.runner.read_adapter(command)
    except ModelFileError as error:
        return str(error)
    return None
