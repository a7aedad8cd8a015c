"""A step's inputs as tensors on the device: views of one buffer that never moves."""

from dataclasses import dataclass

import numpy as np
import torch

from inference_core.device.adapter_rows import TILE_NUMBERS
from inference_core.device.block_tables import TableUpdate
from inference_core.device.step_inputs import Capacity, StepShape, fields_of
from inference_core.triton_kernels.lora.low_rank_slots import LowRankRows
from inference_core.triton_kernels.lora.low_rank_tiles import tile_rows_for
from inference_core.triton_kernels.sampling.draw_params import PARAM_FIELDS

_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32, "float64": torch.float64}
_PER_DRAW = (
    "sample_rows",
    *(name for name, _ in PARAM_FIELDS),
    *("edit_rows", "repetition", "presence", "frequency"),
)


@dataclass(slots=True, frozen=True)
class DeviceBatch:
    """The arrays of `StepInputs` for T tokens of S sequences, R of which are drawn from, as views; counts as the host
    knows them.

    `tables`: int64 [rows x row length], byte offsets of blocks; a sequence's begin at its `table_start`. `adapted`:
    rows that go through adapters; None where none does.
    """

    shape: StepShape
    token_ids: torch.Tensor
    pending: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    table_start: torch.Tensor
    tables: torch.Tensor
    sample_rows: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    edit_rows: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    adapted: LowRankRows | None


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
        """Write the first `count` new entries to the tables, or those that travelled apart."""
        if apart is not None:
            places, values = (torch.from_numpy(a).to(self.tables.device) for a in (apart.places, apart.values))
            self.tables[places] = values
        elif count:
            self.tables[self._arrays["places"][:count]] = self._arrays["values"][:count]

    def batch(self, shape: StepShape) -> DeviceBatch:
        """Views for a step of this shape: the same addresses for the same shape, always."""
        a, tokens, sequences, sampled = self._arrays, shape.tokens, shape.sequences, shape.sampled
        per_token = {name: a[name][:tokens] for name in ("token_ids", "pending", "positions", "slots")}
        per_draw = {name: a[name][:sampled] for name in _PER_DRAW}
        return DeviceBatch(
            shape=shape,
            tables=self.tables,
            query_start=a["query_start"][: sequences + 1],
            context_len=a["context_len"][:sequences],
            table_start=a["table_start"][:sequences],
            adapted=self._adapted(shape) if shape.adapter_tiles else None,
            **per_token,
            **per_draw,
        )

    def _adapted(self, shape: StepShape) -> LowRankRows:
        tiles = self._arrays["adapter_tiles"][: shape.adapter_tiles * TILE_NUMBERS].view(-1, TILE_NUMBERS)
        return LowRankRows(self._arrays["adapter_rows"][: shape.tokens], tiles, tile_rows_for(shape.tokens))
