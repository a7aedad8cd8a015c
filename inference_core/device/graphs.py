"""Captures a device's work once and replays it without launching its kernels one by one (SPEC AT-08)."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

import torch

logger = logging.getLogger(__name__)


class Graphs(ABC):
    """Replays work whose kernels, shapes and addresses never change.

    Contract: work reads and writes memory that lives as long as this object, and does not wait for the device. Its
    result is valid until work of the same key runs again. What work allocates may be used again by other work, but for
    its result: work with large results writes them to memory of its own.
    """

    @abstractmethod
    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run `work`, which must be the same for the same `key`, and return its result."""


class CudaGraphs(Graphs):
    """CUDA graphs that share one memory pool. Work runs twice before it is captured: the first run compiles kernels
    and lets libraries allocate their workspaces.

    Where a capture fails, its work runs eagerly, and so does all later work that is not captured yet. Ranks of a mesh
    may differ in this: replayed and launched collectives are the same to each other.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._can_capture = True

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self._graphs and self._can_capture:
            self._warm_up(work)
            self._try_to_capture(key, work)
        if key not in self._graphs:
            return work()
        graph, result = self._graphs[key]
        graph.replay()
        return result

    @property
    def captured(self) -> tuple[Hashable, ...]:
        return tuple(self._graphs)

    def _warm_up(self, work: Callable[[], torch.Tensor]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)

    def _try_to_capture(self, key: Hashable, work: Callable[[], torch.Tensor]) -> None:
        stream = torch.cuda.current_stream()
        try:
            self._graphs[key] = self._capture(work)
        except Exception as error:
            # torch leaves the stream of a capture that did not end well as the current one.
            torch.cuda.set_stream(stream)
            self._can_capture = False
            logger.warning(
                "a step could not be captured as a CUDA graph (%s): such steps are launched kernel by kernel instead, "
                "which takes longer; capture_steps = false of the group does so from the start",
                error,
            )

    def _capture(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may drive other devices meanwhile, and collectives run on their own thread.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph, result


class NoGraphs(Graphs):
    """Runs all work eagerly: on the CPU, and if capture is off."""

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        return work()
