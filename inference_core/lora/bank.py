"""The seam between the slots that adapters are scheduled into and the runner that computes with them."""

from abc import ABC, abstractmethod
from pathlib import Path

from inference_core.lora.adapter import Adapter


class AdapterBank(ABC):
    """Where a runner keeps the adapters that its steps go through, in slots 0 to `num_slots` - 1.

    Contract: a scheduled sequence whose `adapter` is a slot goes through what was last installed there; slots change
    between two steps only. Rows of other sequences are computed as if there were no adapters. Banks that keep nothing
    beside their slots need neither `hold` nor `forget`.
    """

    num_slots: int

    @abstractmethod
    def read(self, folder: Path) -> Adapter:
        """The adapter in `folder`, checked against the runner's model. Raises ModelFileError."""

    @abstractmethod
    def install(self, slot: int, adapter: Adapter) -> None:
        """Make `adapter` ready to compute with, in place of what `slot` held."""

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Free what `slot` holds."""

    def hold(self, adapter: Adapter) -> None:  # noqa: B027
        """Keep `adapter`, which is of this bank's model, ready to be installed, as `read` does.

        Raises ModelFileError if no slot takes it.
        """

    def forget(self, adapter: Adapter) -> None:  # noqa: B027
        """Nobody will ask for `adapter`, which was read or held, again."""

    @abstractmethod
    def bytes_of(self, adapter: Adapter) -> int:
        """Bytes that `adapter` takes in a slot."""
