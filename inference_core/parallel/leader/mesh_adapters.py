"""The leader's view of a mesh model's adapters: every rank holds and installs its own part."""

import itertools
from pathlib import Path
from typing import Protocol

from inference_core.lora.adapter import Adapter
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.parallel.communication.messages import ClearSlot, ForgetAdapter, InstallAdapter, ReadAdapter


class AdapterCommands(Protocol):
    """Executes adapter commands on all ranks of a mesh (`MeshExecutor`)."""

    def read_adapter(self, command: ReadAdapter) -> None: ...

    def install_adapter(self, command: InstallAdapter) -> None: ...

    def clear_slot(self, command: ClearSlot) -> None: ...

    def forget_adapter(self, command: ForgetAdapter) -> None: ...


class MeshAdapterBank(AdapterBank):
    """Slots on every rank, all with the same adapters. `own`: the bank of the leader's rank."""

    def __init__(self, model: str, config: ModelConfig, own: AdapterBank, commands: AdapterCommands) -> None:
        self.num_slots = own.num_slots
        self._model = model
        self._config = config
        self._own = own
        self._commands = commands
        self._numbers: dict[Adapter, int] = {}
        self._next = itertools.count()

    def read(self, folder: Path) -> Adapter:
        """Have every rank read the folder on its own machine and keep its part."""
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
        """Bytes over all ranks; parts that several ranks hold count once."""
        return self._own.bytes_of(adapter)
