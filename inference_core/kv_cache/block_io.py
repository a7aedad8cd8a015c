"""Reads and writes the content of KV blocks as bytes, for transfers between cores."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


class BlockBytes(ABC):
    """Reads and writes whole blocks between two steps, in order with the steps launched before."""

    @abstractmethod
    def read(self, blocks: list[int]) -> list[bytes]:
        """Return the content of each of `blocks`."""

    @abstractmethod
    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        """Write `contents`, one block's size each, to `blocks`, which no step in flight reads."""


class HostBlockBytes(BlockBytes):
    """Blocks of `arena` uint8 [bytes] in this process's memory, at the byte `offsets` of their ids."""

    def __init__(
        self, arena: NDArray[np.uint8], offsets: Callable[[list[int]], NDArray[np.int64]], block_bytes: int
    ) -> None:
        self._arena = arena
        self._offsets = offsets
        self._block_bytes = block_bytes

    def read(self, blocks: list[int]) -> list[bytes]:
        """See `BlockBytes.read`."""
        return [self._arena[at : at + self._block_bytes].tobytes() for at in self._offsets(blocks).tolist()]

    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        """See `BlockBytes.write`."""
        for at, content in zip(self._offsets(blocks).tolist(), contents, strict=True):
            self._arena[at : at + self._block_bytes] = np.frombuffer(content, np.uint8)
