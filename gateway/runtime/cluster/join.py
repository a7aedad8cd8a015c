"""How a process joins a Ray cluster: which address is dialled, for how long, and what is said when it fails; and a
cluster of several nodes on this machine, each with its own processes, so that each can be killed.
"""

import logging
import os
import signal
import socket
import threading
import time
from types import TracebackType
from typing import Any

import ray
from ray._private.services import get_ray_address_from_environment

from gateway.runtime.cluster.placement import ClusterError
from gateway.runtime.cluster.registry import NAMESPACE

JOIN_SECONDS = 60.0
"""Most seconds between an accepted connection and the cluster's answer."""
CONNECT_SECONDS = 5.0
"""Most seconds until a connection is accepted; a head that starts may refuse some first."""
_RETRY_SECONDS = 0.2
_CLIENT = "ray://"
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_LOOPBACK = "[::ffff:127.0.0.1]"
"""127.0.0.1 as Ray leaves it: for the usual spellings Ray dials the machine's own address, where a head that is bound
to loopback does not listen."""
_START = "Start one: aio cluster up, or ray start --head"


class _Attempt(threading.Thread):
    """`ray.init` on its own thread: it can be neither interrupted nor given a time limit."""

    def __init__(self, ray_address: str, dialled: str) -> None:
        super().__init__(name="join-ray", daemon=True)
        self.ray_address, self.dialled = ray_address, dialled
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            ray.init(address=self.ray_address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            self.error = error


_attempt: _Attempt | None = None
_one_at_a_time = threading.Lock()


def join(address: str, *, seconds: float = JOIN_SECONDS) -> None:
    """Connect this process to a cluster: `auto`, `HOST:PORT` of its head, or `ray://HOST:PORT`.

    Raises ClusterError, which says what was tried, after at most `CONNECT_SECONDS` + `seconds`. An attempt that is
    still running then is waited for by the next call, not repeated.
    """
    global _attempt
    with _one_at_a_time:
        if ray.is_initialized():
            return
        attempt = _attempt
        if attempt is None or not attempt.is_alive():
            ray_address, dialled = _resolved(address)
            _require_listener(address, dialled)
            attempt = _attempt = _Attempt(ray_address, dialled)
            attempt.start()
        attempt.join(seconds)
    if attempt.is_alive():
        raise ClusterError(
            f"no Ray cluster at {address}: {attempt.dialled} accepts connections, and did not let this process "
            f"join within {seconds:g} s. {_checks(attempt.dialled)}"
        )
    if attempt.error is not None:
        said = _innermost(attempt.error)
        raise ClusterError(
            f"could not join the Ray cluster at {address}, tried {attempt.dialled}: {said}. {_checks(attempt.dialled)}"
        ) from attempt.error


def _resolved(address: str) -> tuple[str, str]:
    """Return what Ray is given for `address`, and what is dialled. Raises ClusterError if `auto` finds nothing."""
    dialled = _found_here() if address == "auto" else address
    host, port = _host_and_port(address, dialled)
    if dialled.startswith(_CLIENT):
        return dialled, dialled
    if host in _THIS_MACHINE:
        return f"{_LOOPBACK}:{port}", f"127.0.0.1:{port}"
    return address, dialled  # for `auto` Ray also reads the token of a cluster of this machine


def _found_here() -> str:
    """Return the address of a cluster of this machine, or of the environment. Raises ClusterError."""
    try:
        address: str | None = get_ray_address_from_environment("auto", None)
    except ConnectionError:
        address = None
    if not address:
        raise ClusterError(
            "no Ray cluster on this machine: RAY_ADDRESS is not set, and no process of Ray runs here. "
            f"{_START}. For one on other machines give its address, HOST:PORT or ray://HOST:PORT"
        )
    return address


def _require_listener(address: str, dialled: str) -> None:
    """Raises ClusterError unless something accepts a connection there."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection(_host_and_port(address, dialled), timeout=CONNECT_SECONDS).close()
            return
        except OSError as error:
            if isinstance(error, ConnectionRefusedError) and time.monotonic() < deadline:
                time.sleep(_RETRY_SECONDS)
                continue
            raise ClusterError(
                f"no Ray cluster at {address}: no connection to {dialled} within {CONNECT_SECONDS:g} s "
                f"({error.strerror or error}). {_START}"
            ) from error


def _host_and_port(named: str, address: str) -> tuple[str, int]:
    """Raises ClusterError for what is not an address."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"{named!r} is not the address of a Ray cluster: give auto, HOST:PORT or ray://HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _checks(dialled: str) -> str:
    """Return what to check where a port answers but Ray does not let this process join."""
    common = f"All of the cluster must run Ray {ray.__version__}, as this process does"
    if dialled.startswith(_CLIENT):
        return f"The port must be that of Ray's client server on the head, 10001 unless it was changed. {common}"
    return (
        "The port must be the head's, 6379 unless it was changed, and a node of the cluster must run on this machine: "
        f"ray start --address={dialled}; without one use ray://HOST:10001. {common}"
    )


def _innermost(error: BaseException) -> str:
    """Return the message of the first cause, which Ray's outer errors leave out, on one line."""
    while (cause := error.__cause__) is not None:
        error = cause
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


OBJECT_STORE_BYTES = 100 << 20
"""Object store of every node; almost nothing passes through it."""

LOOPBACK = "127.0.0.1"
"""Where the nodes listen: no other machine reaches them, so their connections need no certificates."""


class LocalCluster:
    """A head without CPUs, which has Serve's controller, and `nodes` equal nodes. A context manager.

    Raises ClusterError if Ray cannot write its files.
    """

    def __init__(self, nodes: int, *, cpus: int = 1, gpus: int = 0) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's default is 15: any other program on the machine would then get CPU time before the cores.
        os.environ.setdefault("RAY_worker_niceness", "0")
        from ray.cluster_utils import Cluster

        self._node_options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "node_ip_address": LOOPBACK,
        }
        head = {
            "num_cpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "node_ip_address": LOOPBACK,
        }
        try:
            self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        except OSError as error:
            if error.filename is None:
                raise
            raise ClusterError(
                f"Ray cannot make its folder {error.filename} ({error.strerror}); set RAY_TMPDIR to another"
            ) from error
        self.nodes: list[Any] = []
        try:
            for _ in range(nodes):
                self.add_node()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, **options: Any) -> Any:
        """Add a node; it is alive on return."""
        node = self._cluster.add_node(**{**self._node_options, **options})
        self.nodes.append(node)
        return node

    def kill_node(self, node: Any) -> None:
        """Kill all of its processes at once, as if the machine failed."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def wait_for_interrupt(self) -> None:
        """Until SIGINT or SIGTERM."""
        over = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        over.wait()

    def close(self) -> None:
        """Leave the cluster, if this process has joined, and stop all nodes."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
