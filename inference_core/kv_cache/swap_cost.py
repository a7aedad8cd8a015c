"""What it takes to copy a KV block to host memory and back, as measured, against computing it again, as learned."""

from typing import Final

from inference_core.engine.step_time_model import StepCost
from inference_core.step_plan import SwapTimes


class CopySpeed:
    """Seconds per block of copies one way, recent ones counting most; 0 until the first was measured."""

    _MEMORY: Final = 0.9  # weight of what was measured before

    def __init__(self) -> None:
        self._seconds = self._blocks = 0.0

    @property
    def seconds_per_block(self) -> float:
        return self._seconds / self._blocks if self._blocks else 0.0

    def measure(self, blocks: int, seconds: float) -> None:
        """`blocks` were copied in `seconds`."""
        if blocks:
            self._seconds = self._seconds * self._MEMORY + seconds
            self._blocks = self._blocks * self._MEMORY + blocks


class SwapCost:
    """Of one model, whose blocks hold `block_size` tokens. `cost`: what its steps take; None until that is known.

    What has not been measured yet is taken as free, and one refusal in `EXPLORE` is overruled, so that a measurement
    that was bad luck, or that has grown old, does not stand for ever.
    """

    EXPLORE: Final = 64

    def __init__(self, block_size: int) -> None:
        self.cost: StepCost | None = None
        self.out, self.back = CopySpeed(), CopySpeed()
        self._block_size = block_size
        self._refusals = 0

    def measure(self, times: SwapTimes) -> None:
        """A step's copies took so long."""
        self.out.measure(times.out_blocks, times.out_seconds)
        self.back.measure(times.back_blocks, times.back_seconds)

    def computing(self, first: int, count: int) -> float | None:
        """Seconds to compute a sequence's `count` blocks from its block `first` on, beside others; None if unknown."""
        tokens = count * self._block_size
        depth = first * self._block_size + (tokens + 1) / 2
        further = 0.0 if self.cost is None else self.cost.further(depth)
        return tokens * further if further > 0 else None

    def worth_offloading(self, position: int, chance: float) -> bool:
        """Whether to copy the block at `position` of its chain out, if it is wanted back with probability `chance`."""
        computing = self.computing(position, 1)
        copying = self.out.seconds_per_block + chance * self.back.seconds_per_block
        return computing is None or self._is_less(copying, chance * computing)

    def worth_restoring(self, first: int, count: int) -> bool:
        """Whether to copy `count` blocks of a chain back, from its block `first` on, rather than compute them."""
        computing = self.computing(first, count)
        return computing is None or self._is_less(count * self.back.seconds_per_block, computing)

    def _is_less(self, copying: float, computing: float) -> bool:
        if copying <= computing:
            return True
        self._refusals += 1
        return self._refusals % self.EXPLORE == 0
