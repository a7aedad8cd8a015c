"""`python -m inference_core.parallel`: one rank of a mesh under torchrun, or all ranks of this machine.

With torchrun's variables in the environment this process is one rank: rank 0 leads and serves a Core
at SOCKET, the other ranks execute its plans. Without them it starts this machine's ranks:

    python -m inference_core.parallel mesh.json --socket core.sock
    python -m inference_core.parallel mesh.json --socket core.sock --nodes 2 --node 0 --master 10.0.0.1 --port 29400
    torchrun --nnodes 2 --nproc-per-node 4 ... -m inference_core.parallel mesh.json --socket core.sock

`mesh.json` is a `MeshSpec`; only rank 0 reads it.
"""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from inference_core.errors import CoreError, MeshError
from inference_core.parallel.collectives import open_store
from inference_core.parallel.mesh import LEADER, MeshSpec, RankEnvironment

DEFAULT_CACHE = Path("~/.cache/aio")
_STORE_SECONDS = 300.0


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return run_rank(options) if "RANK" in os.environ else launch(options, arguments)
    except CoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def run_rank(options: argparse.Namespace) -> int:
    """Run as the rank that the environment variables name."""
    from inference_core.parallel.leader import follow, publish, read_spec

    environment = RankEnvironment.read()
    store = open_store(environment, _STORE_SECONDS)
    if environment.rank == 0:
        publish(store, _spec(options.spec))
    spec = read_spec(store)
    cache_dir = options.cache_dir.expanduser()
    if environment.rank == LEADER:
        _lead(environment, store, spec, cache_dir, options.socket)
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a follower ends when its leader has finished
    try:
        follow(environment, store, spec, cache_dir)
    except Exception as error:
        print(f"rank {environment.rank}: {error}", file=sys.stderr, flush=True)
        # Process groups of a broken mesh wait for each other in their destructors.
        os._exit(1)
    return 0


def _lead(environment: RankEnvironment, store: object, spec: MeshSpec, cache_dir: Path, socket: str | None) -> None:
    from inference_core.engine.core import Core
    from inference_core.parallel.leader import MeshLeader
    from inference_core.transport.listener import UnixListener
    from inference_core.transport.server import serve_core

    if socket is None:
        raise MeshError("rank 0 serves a core: name its socket with --socket PATH")
    led: list[MeshLeader] = []

    def core() -> Core:
        led.append(MeshLeader(environment, store, spec, cache_dir))
        return led[0].core

    try:
        serve_core(core, UnixListener(socket), watchdog_seconds=spec.step_seconds)
    finally:
        for mesh in led:
            mesh.close()


def launch(options: argparse.Namespace, arguments: list[str]) -> int:
    """Start this machine's ranks and wait until they end. Returns the exit status."""
    from inference_core.parallel.local_ranks import LocalRanks

    spec = _spec(options.spec)
    per_node, rest = divmod(spec.mesh.size, options.nodes)
    if rest:
        raise MeshError(f"{spec.mesh.size} ranks cannot be spread over {options.nodes} machines evenly")
    if not 0 <= options.node < options.nodes:
        raise MeshError(f"machine {options.node} is not one of {options.nodes}; machines count from 0")
    spec.mesh.check_node(per_node)
    first = options.node * per_node
    ranks = LocalRanks(
        [
            RankEnvironment(
                rank=first + local,
                world_size=spec.mesh.size,
                local_rank=local,
                local_world_size=per_node,
                master=options.master,
                port=options.port,
            )
            for local in range(per_node)
        ],
        arguments,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ranks.interrupt())
    return ranks.wait()


def _spec(path: Path | None) -> MeshSpec:
    if path is None:
        raise MeshError("nothing to load; give the path of a mesh specification in JSON")
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeshSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise MeshError(f"{path} is not a mesh specification: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inference_core.parallel", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("spec", type=Path, nargs="?", help="mesh specification in JSON; rank 0 needs it")
    parser.add_argument("--socket", metavar="PATH", help="where rank 0 serves its core")
    parser.add_argument("--cache-dir", type=Path, default=DEFAULT_CACHE, help="repacked weights; safe to delete")
    parser.add_argument("--nodes", type=int, default=1, help="machines")
    parser.add_argument("--node", type=int, default=0, help="which of them this is")
    parser.add_argument("--master", default="127.0.0.1", help="address of machine 0")
    parser.add_argument("--port", type=int, default=29400, help="a free port on machine 0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
