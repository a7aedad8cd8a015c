"""The content of KV blocks on a device as bytes, through pinned host memory."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.kv_cache.block_io import BlockBytes
from inference_core.triton_kernels.attention.block_swap import swap_blocks


class DeviceBlockBytes(BlockBytes):
    """Of `arena` uint8 [bytes] on its device, with blocks at the byte `offsets` of their ids; on the current stream,
    whose end is waited for."""

    def __init__(
        self, arena: torch.Tensor, offsets: Callable[[list[int]], NDArray[np.int64]], block_bytes: int
    ) -> None:
        self._arena = arena
        self._offsets = offsets
        self._block_bytes = block_bytes

    def read(self, blocks: list[int]) -> list[bytes]:
        """See `BlockBytes.read`."""
        size, staging = self._block_bytes, self._staging(len(blocks))
        pairs = [(at, number * size) for number, at in enumerate(self._offsets(blocks).tolist())]
        swap_blocks(self._arena, staging, pairs, size)
        self._wait()
        return [staging[at : at + size].numpy().tobytes() for _, at in pairs]

    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        """See `BlockBytes.write`."""
        size, staging = self._block_bytes, self._staging(len(blocks))
        staging.numpy()[:] = np.frombuffer(b"".join(contents), np.uint8)
        pairs = [(number * size, at) for number, at in enumerate(self._offsets(blocks).tolist())]
        swap_blocks(staging, self._arena, pairs, size)
        self._wait()

    def _staging(self, blocks: int) -> torch.Tensor:
        return torch.empty(blocks * self._block_bytes, dtype=torch.uint8, pin_memory=self._arena.is_cuda)

    def _wait(self) -> None:
        if self._arena.is_cuda:
            torch.cuda.current_stream(self._arena.device).synchronize()
