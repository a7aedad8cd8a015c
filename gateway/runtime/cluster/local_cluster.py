"""A Ray cluster of several nodes on this machine, each with its own processes, so that each can be killed."""

import os
import signal
import threading
from types import TracebackType
from typing import Any

from gateway.runtime.cluster.errors import ClusterError

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
        """The address by which others join."""
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
