"""The adapters of a mesh's model, as its leader sees them: every rank holds and installs its own part."""

import itertools
from pathlib import Path
from typing import Protocol

from inference_core.lora.adapter import Adapter
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.parallel.communication.messages import ClearSlot, ForgetAdapter, InstallAdapter, ReadAdapter


class AdapterCommands(Protocol):
    """What executes orders about adapters on all ranks of a replica (`ReplicaExecutor`)."""

    def read_adapter(self, command: ReadAdapter) -> None: ...

    def install_adapter(self, command: InstallAdapter) -> None: ...

    def clear_slot(self, command: ClearSlot) -> None: ...

    def forget_adapter(self, command: ForgetAdapter) -> None: ...


class MeshAdapterBank(AdapterBank):
    """Slots on every rank, all of which hold the same adapters. `own`: those of the leader's rank."""

    def __init__(self, model: str, config: ModelConfig, own: AdapterBank, commands: AdapterCommands) -> None:
        self.num_slots = own.num_slots
        self._model = model
        self._config = config
        self._own = own
        self._commands = commands
        self._numbers: dict[Adapter, int] = {}
        self._next = itertools.count()

    def read(self, folder: Path) -> Adapter:
        """Every rank reads the folder, on its own machine, and keeps its part."""
        adapter, number = read_adapter(folder, self._config), next(self._next)
        self._commands.read_adapter(ReadAdapter(self._model, number, str(folder), adapter.digest))
        self._numbers[adapter] = number
        return adapter

    def install(self, slot: int, adapter: Adapter) -> None:
        self._commands.install_adapter(InstallAdapter(self._model, slot, self._numbers[adapter]))

    def clear(self, slot: int) -> None:
        self._commands.clear_slot(ClearSlot(self._model, slot))

    def forget(self, adapter: Adapter) -> None:
        self._commands.forget_adapter(ForgetAdapter(self._model, self._numbers.pop(adapter)))

    def bytes_of(self, adapter: Adapter) -> int:
        """Of all ranks together; what several hold alike is counted once."""
        return self._own.bytes_of(adapter)
