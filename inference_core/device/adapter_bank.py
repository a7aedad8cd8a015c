"""Adapters on a device: slots at fixed addresses, which CUDA graphs read, filled from host memory."""

from dataclasses import dataclass
from pathlib import Path

import torch

from inference_core.errors import ModelFileError
from inference_core.loaders.packed_tensor import dequantize
from inference_core.lora.adapter import (
    PROJECTIONS,
    Adapter,
    AdapterBank,
    LowRank,
    Projection,
    adapter_targets,
    projection_parts,
)
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_config import ModelConfig
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.weights import LowRankRows, LowRankSlots

_MOST_PARTS = 3


@dataclass(slots=True, frozen=True)
class _Part:
    """A layer's factors in host memory: A [rank, inputs] and B^T [rank, outputs] of part `index` of a projection."""

    layer: int
    projection: Projection
    index: int
    down: torch.Tensor
    up: torch.Tensor
    scale: float


class DeviceAdapterBank(AdapterBank):
    """`num_slots` slots on `device`, each for an adapter of up to `max_rank` ranks in every layer of a `config` model.

    Loaded adapters are kept in host memory (pinned if the device is a GPU) as `dtype`, so that installing one is a
    copy. Copies are ordered on the device's stream: a running step is not disturbed, and graphs read the last installed
    adapter at the same addresses. The memory of all slots is allocated at once.
    """

    def __init__(
        self, config: ModelConfig, num_slots: int, max_rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        self.max_rank = max_rank
        self._config = config
        self._dtype = dtype
        self._device = device
        self._held: dict[Adapter, list[_Part]] = {}
        shape = (config.num_layers, len(PROJECTIONS), num_slots, _MOST_PARTS)
        self._ranks = torch.zeros(shape, dtype=torch.int32, device=device)
        self._scales = torch.zeros(shape, dtype=torch.float32, device=device)
        self.layers = [self._layer(index) for index in range(config.num_layers)]

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots on the device."""
        return sum(t.nbytes for layer in self.layers for slots in layer.values() for t in (slots.down, slots.up))

    def read(self, folder: Path) -> Adapter:
        adapter = read_adapter(folder, self._config)
        self.hold(adapter)
        return adapter

    def hold(self, adapter: Adapter) -> None:
        """Keep `adapter`, of this bank's model, in host memory. Raises ModelFileError for a rank over `max_rank`."""
        if adapter.rank > self.max_rank:
            raise ModelFileError(
                f"{adapter.path} has rank {adapter.rank}; slots on the device take ranks up to {self.max_rank} "
                "(max_adapter_rank of the model)"
            )
        self._held[adapter] = [
            self._part(index, name, low) for index, layer in enumerate(adapter.layers) for name, low in layer.items()
        ]

    def forget(self, adapter: Adapter) -> None:
        self._held.pop(adapter, None)

    def install(self, slot: int, adapter: Adapter) -> None:
        ranks = torch.zeros(self._ranks.shape[:2] + self._ranks.shape[3:], dtype=torch.int32)
        scales = torch.zeros(ranks.shape)
        for part in self._held[adapter]:
            slots = self.layers[part.layer][part.projection]
            rank, columns = len(part.down), slice(*slots.borders[part.index : part.index + 2])
            slots.down[slot, part.index, :rank].copy_(part.down, non_blocking=True)
            slots.up[slot, :rank, columns].copy_(part.up, non_blocking=True)
            number = PROJECTIONS.index(part.projection)
            ranks[part.layer, number, part.index] = rank
            scales[part.layer, number, part.index] = part.scale
        self._ranks[:, :, slot].copy_(ranks)
        self._scales[:, :, slot].copy_(scales)

    def clear(self, slot: int) -> None:
        self._ranks[:, :, slot] = 0

    def bytes_of(self, adapter: Adapter) -> int:
        return adapter.num_weights * int(self._dtype.itemsize)

    def add(self, layer: int, projection: Projection, x: torch.Tensor, out: torch.Tensor, rows: LowRankRows) -> None:
        """out [T, outputs] += scale * B (A x) for x [T, inputs], in the rows of each adapter."""
        ops.add_low_rank(out, x, self.layers[layer][projection], rows)

    def _layer(self, index: int) -> dict[Projection, LowRankSlots]:
        slots: dict[Projection, LowRankSlots] = {}
        for number, projection in enumerate(PROJECTIONS):
            own = [target for target in projection_parts(self._config).values() if target.projection == projection]
            # Kernels count a projection's parts from its first output, so those without adapters have empty slots.
            if not any(target.projection == projection for target in adapter_targets(self._config).values()):
                continue
            borders = (*(target.column for target in own), own[-1].column + own[-1].outputs)
            sizes = (
                (self.num_slots, len(own), self.max_rank, own[0].inputs),
                (self.num_slots, self.max_rank, borders[-1]),
            )
            down, up = (torch.zeros(size, dtype=self._dtype, device=self._device) for size in sizes)
            slots[projection] = LowRankSlots(down, up, self._scales[index, number], self._ranks[index, number], borders)
        return slots

    def _part(self, layer: int, name: str, low: LowRank) -> _Part:
        target = adapter_targets(self._config)[name]
        names = [n for n, other in projection_parts(self._config).items() if other.projection == target.projection]
        down, up = (torch.tensor(dequantize(tensor)) for tensor in (low.down, low.up))
        return _Part(layer, target.projection, names.index(name), self._kept(down), self._kept(up.T), low.scale)

    def _kept(self, values: torch.Tensor) -> torch.Tensor:
        pinned = self._device.type == "cuda"
        return torch.empty(values.shape, dtype=self._dtype, pin_memory=pinned).copy_(values)
