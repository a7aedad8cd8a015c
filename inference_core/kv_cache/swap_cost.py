"""Weighs copying a KV block to host memory and back, as measured, against computing it again, as learned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class SwapTimes:
    """Blocks of a step's `offloads` and `restores`, and the seconds that copying them took."""

    out_blocks: int
    out_seconds: float
    back_blocks: int
    back_seconds: float

    @property
    def seconds(self) -> float:
        return self.out_seconds + self.back_seconds


class CopySpeed:
    """Seconds per block copied in one direction, a moving average; 0 before the first measurement."""

    _MEMORY: Final = 0.9  # weight of what was measured before

    def __init__(self) -> None:
        self._seconds = self._blocks = 0.0

    @property
    def seconds_per_block(self) -> float:
        return self._seconds / self._blocks if self._blocks else 0.0

    def measure(self, blocks: int, seconds: float) -> None:
        """Record that `blocks` were copied in `seconds`."""
        if blocks:
            self._seconds = self._seconds * self._MEMORY + seconds
            self._blocks = self._blocks * self._MEMORY + blocks


class SwapCost:
    """Decides for one model whether to copy a KV block of `block_size` tokens or to compute it again.

    `seconds_per_token`: the seconds of one more prompt token that attends to so many tokens; None until known.
    `blocks_per_position`: blocks that hold a part of the layers of the same tokens.
    A cost that was not measured yet counts as 0, and one refusal in `EXPLORE` is overruled, so that a wrong or outdated
    measurement is corrected.
    """

    EXPLORE: Final = 64

    def __init__(self, block_size: int, blocks_per_position: int = 1) -> None:
        self.seconds_per_token: Callable[[float], float] | None = None
        self.out, self.back = CopySpeed(), CopySpeed()
        self._block_size = block_size
        self._blocks_per_position = blocks_per_position
        self._refusals = 0

    def measure(self, times: SwapTimes) -> None:
        """Record the times of a step's copies."""
        self.out.measure(times.out_blocks, times.out_seconds)
        self.back.measure(times.back_blocks, times.back_seconds)

    def computing(self, first: int, count: int) -> float | None:
        """Seconds to compute a sequence's `count` blocks from `first` on within a larger step; None if unknown."""
        tokens = count * self._block_size
        depth = first * self._block_size + (tokens + 1) / 2
        seconds = 0.0 if self.seconds_per_token is None else self.seconds_per_token(depth)
        return tokens * seconds if seconds > 0 else None

    def computing_block(self, position: int) -> float | None:
        """One block's part of the seconds to compute the tokens at `position`; None if unknown."""
        computing = self.computing(position, 1)
        return None if computing is None else computing / self._blocks_per_position

    def worth_offloading(self, position: int, chance: float) -> bool:
        """Whether to copy out the block at `position` of its chain, if it is needed again with probability `chance`."""
        computing = self.computing_block(position)
        copying = self.out.seconds_per_block + chance * self.back.seconds_per_block
        return computing is None or self._is_less(copying, chance * computing)

    def worth_restoring(self, first: int, count: int, copies: int | None = None) -> bool:
        """Whether to copy back `count` blocks of a chain from `first` on rather than compute them. `copies`: how many
        blocks that copies, where it is another number."""
        computing = self.computing(first, count)
        copying = (count if copies is None else copies) * self.back.seconds_per_block
        return computing is None or self._is_less(copying, computing)

    def _is_less(self, copying: float, computing: float) -> bool:
        if copying <= computing:
            return True
        self._refusals += 1
        return self._refusals % self.EXPLORE == 0
