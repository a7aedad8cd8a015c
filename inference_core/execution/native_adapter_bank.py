"""Adapters inside the native decoder step."""

from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.execution.native_decoder import NativeDecoder
from inference_core.lora.adapter import Adapter, adapter_targets
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.bank import AdapterBank
from inference_core.lora.packing import LANES, PackedAdapter, Storage, packed_bytes
from inference_core.model_config import ModelConfig


class NativeAdapterBank(AdapterBank):
    """Slots of `decoder`; adapters are held as `storage` numbers, whatever the file's."""

    def __init__(self, decoder: NativeDecoder, config: ModelConfig, num_slots: int, storage: Storage) -> None:
        self.num_slots = num_slots
        self._decoder = decoder
        self._config = config
        self._storage: Storage = storage
        self._packed: dict[int, PackedAdapter] = {}

    def read(self, folder: Path) -> Adapter:
        if any(target.column % LANES for target in adapter_targets(self._config).values()):
            raise ModelFileError(
                f"{folder}: the CPU kernels add adapters where intermediate_size is a multiple of {LANES}, "
                f"not {self._config.intermediate_size}"
            )
        return read_adapter(folder, self._config)

    def install(self, slot: int, adapter: Adapter) -> None:
        packed = PackedAdapter(adapter, adapter_targets(self._config), self._storage)
        self._decoder.set_adapter(slot, packed)
        self._packed[slot] = packed

    def clear(self, slot: int) -> None:
        self._decoder.set_adapter(slot, None)
        self._packed.pop(slot, None)

    def bytes_of(self, adapter: Adapter) -> int:
        return packed_bytes(adapter, self._storage)
