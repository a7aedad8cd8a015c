"""The interface between adapter slots, which the scheduler assigns, and the runner that computes with them."""

from abc import ABC, abstractmethod
from pathlib import Path

from inference_core.lora.adapter import Adapter


class AdapterBank(ABC):
    """A runner's adapters, in slots 0 to `num_slots` - 1.

    Contract: a scheduled sequence whose `adapter` is a slot uses the adapter last installed there; slots change only
    between steps. Rows of other sequences are computed without adapters. Banks that keep adapters only in slots need
    neither `hold` nor `forget`.
    """

    num_slots: int

    @abstractmethod
    def read(self, folder: Path) -> Adapter:
        """Read the adapter in `folder` and check it against the runner's model. Raises ModelFileError."""

    @abstractmethod
    def install(self, slot: int, adapter: Adapter) -> None:
        """Install `adapter` in `slot`, replacing the previous one."""

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Free `slot`."""

    def hold(self, adapter: Adapter) -> None:  # noqa: B027
        """Keep `adapter`, which belongs to this bank's model, ready to be installed, as `read` does.

        Raises ModelFileError if no slot takes it.
        """

    def forget(self, adapter: Adapter) -> None:  # noqa: B027
        """Drop `adapter`, which was read or held; it will not be installed again."""

    @abstractmethod
    def bytes_of(self, adapter: Adapter) -> int:
        """Bytes that `adapter` takes in a slot."""
