"""A step's inputs as tensors on the device, and graphs that read them.

The tensors are views of one buffer at a fixed address, so a device's work can be captured once and replayed without
launching its kernels one by one (SPEC AT-08).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch

from inference_core.device.block_tables import TableUpdate
from inference_core.device.step_inputs import PARAM_FIELDS, TILE_NUMBERS, Capacity, StepShape, fields_of
from inference_core.triton_kernels.tiles import tile_rows_for
from inference_core.triton_kernels.weights import LowRankRows

_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32, "float64": torch.float64}
_PENALTIES = ("repetition", "presence", "frequency")


@dataclass(slots=True, frozen=True)
class DeviceBatch:
    """Views of the arrays of `StepInputs` that a decoder reads, for T tokens of S sequences."""

    shape: StepShape
    token_ids: torch.Tensor
    pending: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    table_start: torch.Tensor
    tables: torch.Tensor
    """int64 [rows x row length], byte offsets of blocks; a sequence's table starts at its `table_start`."""
    sample_rows: torch.Tensor
    """The tokens that logits are computed of."""
    adapted: LowRankRows | None
    """Rows that use adapters; None if no row does."""


@dataclass(slots=True, frozen=True)
class DeviceDraws:
    """Views of the arrays of `StepInputs` that a sampler reads, each with a number per row that is sampled."""

    params: list[torch.Tensor]
    """Those of `PARAM_FIELDS`."""
    edit_rows: torch.Tensor
    """The row of the tables of edits; below 0 for a draw without."""
    penalties: list[torch.Tensor]
    """Of repetition, presence and frequency."""


class DeviceInputs:
    """`memory` uint8 on the device, laid out as `StepInputs` lays out the host's; `tables` as in `DeviceBatch`."""

    def __init__(self, capacity: Capacity, memory: torch.Tensor, tables: torch.Tensor) -> None:
        self.memory = memory
        self.tables = tables
        self._arrays = {
            name: memory[field.start : field.start + field.length * np.dtype(field.dtype).itemsize].view(
                _TORCH_DTYPES[np.dtype(field.dtype).name]
            )
            for name, field in fields_of(capacity).items()
        }

    def apply_table_updates(self, count: int, apart: TableUpdate | None) -> None:
        """Write the first `count` new entries to the tables, or the update `apart`, which was too large for them."""
        if apart is not None:
            places, values = (torch.from_numpy(a).to(self.tables.device) for a in (apart.places, apart.values))
            self.tables[places] = values
        elif count:
            self.tables[self._arrays["places"][:count]] = self._arrays["values"][:count]

    def batch(self, shape: StepShape) -> DeviceBatch:
        """What a decoder reads in a step of this shape; the same shape always has the same addresses."""
        a, tokens, sequences = self._arrays, shape.tokens, shape.sequences
        per_token = {name: a[name][:tokens] for name in ("token_ids", "pending", "positions", "slots")}
        return DeviceBatch(
            shape=shape,
            tables=self.tables,
            query_start=a["query_start"][: sequences + 1],
            context_len=a["context_len"][:sequences],
            table_start=a["table_start"][:sequences],
            sample_rows=a["sample_rows"][: shape.sampled],
            adapted=self._adapted(shape) if shape.adapter_tiles else None,
            **per_token,
        )

    def draws(self, shape: StepShape) -> DeviceDraws:
        """What a sampler reads in a step of this shape."""
        a, sampled = self._arrays, shape.sampled
        return DeviceDraws(
            [a[name][:sampled] for name, _ in PARAM_FIELDS],
            a["edit_rows"][:sampled],
            [a[name][:sampled] for name in _PENALTIES],
        )

    def _adapted(self, shape: StepShape) -> LowRankRows:
        tiles = self._arrays["adapter_tiles"][: shape.adapter_tiles * TILE_NUMBERS].view(-1, TILE_NUMBERS)
        return LowRankRows(self._arrays["adapter_rows"][: shape.tokens], tiles, tile_rows_for(shape.tokens))


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
