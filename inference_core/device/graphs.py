"""Captures a device's work once and replays it without launching its kernels one by one (SPEC AT-08)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

import torch


class Graphs(ABC):
    """Replays work whose kernels, shapes and addresses never change.

    Contract: work reads and writes memory that lives as long as this object, and does not wait for the device. Its
    result is valid until work of the same key runs again.
    """

    @abstractmethod
    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run `work`, which must be the same for the same `key`, and return its result."""


class CudaGraphs(Graphs):
    """CUDA graphs that share one memory pool. Work runs twice before it is captured: the first run compiles kernels
    and lets libraries allocate their workspaces."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self._graphs:
            self._capture(key, work)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def _capture(self, key: Hashable, work: Callable[[], torch.Tensor]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may drive other devices meanwhile, and collectives run on their own thread.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        self._graphs[key] = graph, result


class NoGraphs(Graphs):
    """Runs all work eagerly: on the CPU, and if capture is off."""

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        return work()
