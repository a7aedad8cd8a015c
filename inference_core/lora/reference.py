"""Adapters in plain torch: the oracle of the native kernels, and what serves where there is no compiler."""

from pathlib import Path
from typing import NamedTuple

import torch

from inference_core.loaders.packed_tensor import PackedTensor, bfloat16_to_float32, dequantize, float32_to_bfloat16
from inference_core.lora.adapter import Adapter, Projection, adapter_targets
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.bank import AdapterBank
from inference_core.lora.packing import Storage, packed_bytes
from inference_core.model_config import ModelConfig
from inference_core.step_plan import ScheduledSequence


class _Factors(NamedTuple):
    """float32 A [rank, inputs] and B [outputs, rank] of outputs from `column` on."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    column: int


_Layers = list[dict[Projection, list[_Factors]]]


class AdaptedRows:
    """Which rows of a step go through which adapter; adds to a projection's outputs what the adapters give."""

    def __init__(self, groups: list[tuple[torch.Tensor, _Layers]]) -> None:
        self._groups = groups

    def add(self, layer: int, projection: Projection, x: torch.Tensor, out: torch.Tensor) -> None:
        """out[T, N] += scale * B (A x) for x float32 [T, K], in the rows of each adapter."""
        for rows, layers in self._groups:
            for factors in layers[layer].get(projection, ()):
                columns = slice(factors.column, factors.column + len(factors.up))
                out[rows, columns] += x[rows] @ factors.down.T * factors.scale @ factors.up.T


class TorchAdapterBank(AdapterBank):
    """Adapters as float32 tensors; with the `storage` "bfloat16" they are rounded as the native bank rounds them."""

    def __init__(self, config: ModelConfig, num_slots: int, storage: Storage) -> None:
        self.num_slots = num_slots
        self._config = config
        self._storage: Storage = storage
        self._installed: dict[int, _Layers] = {}

    def read(self, folder: Path) -> Adapter:
        return read_adapter(folder, self._config)

    def install(self, slot: int, adapter: Adapter) -> None:
        layers: _Layers = []
        for layer in adapter.layers:
            parts: dict[Projection, list[_Factors]] = {}
            for name, low in layer.items():
                target = adapter_targets(self._config)[name]
                factors = _Factors(self._values(low.down), self._values(low.up), low.scale, target.column)
                parts.setdefault(target.projection, []).append(factors)
            layers.append(parts)
        self._installed[slot] = layers

    def clear(self, slot: int) -> None:
        self._installed.pop(slot, None)

    def bytes_of(self, adapter: Adapter) -> int:
        return packed_bytes(adapter, "float32")

    def rows(self, sequences: list[ScheduledSequence]) -> AdaptedRows | None:
        """Those of `sequences`, one after another; None if no sequence has an adapter.

        Raises IndexError for a slot that holds none.
        """
        by_slot: dict[int, list[int]] = {}
        row = 0
        for sequence in sequences:
            count = len(sequence.token_ids)
            if sequence.adapter >= 0:
                by_slot.setdefault(sequence.adapter, []).extend(range(row, row + count))
            row += count
        for slot in by_slot:
            if slot not in self._installed:
                raise IndexError(f"slot {slot} holds no adapter")
        return (
            AdaptedRows([(torch.tensor(r), self._installed[slot]) for slot, r in by_slot.items()]) if by_slot else None
        )

    def _values(self, tensor: PackedTensor) -> torch.Tensor:
        values = dequantize(tensor)
        if self._storage == "bfloat16":
            values = bfloat16_to_float32(float32_to_bfloat16(values))
        return torch.tensor(values)
