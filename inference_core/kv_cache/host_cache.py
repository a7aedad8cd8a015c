"""Which evicted KV blocks of one model are kept in host memory: digests and slots only.

Copying a block to host memory and back, as measured, is weighed against computing it again, as learned.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from inference_core.errors import IntegrityError


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


@dataclass(slots=True)
class SwapTotals:
    """Counts since start: blocks copied out and back, blocks not kept because copying costs more than computing,
    seconds of copying, and seconds of computing saved."""

    out_blocks: int = 0
    back_blocks: int = 0
    refused_blocks: int = 0
    copying_seconds: float = 0.0
    spared_seconds: float = 0.0


class HostCache:
    """A second tier of the prefix cache (SPEC KV-09, TI-14): full blocks by digest, in `capacity` slots.

    A block evicted from the device is copied to a slot (*offloaded*) if that is worth it: blocks that a preempted
    sequence waits for are certain to be needed, others with the probability observed so far. An admitted sequence that
    finds its prefix here has it copied back (*restored*) into blocks of its own. Restored blocks stay here too, so that
    their next eviction costs nothing.

    Copies belong to the step being planned, until `end`: a block offloaded in it cannot be restored in it, and a block
    restored in it keeps its slot, so that restores can be repeated if the step fails. Offloads cannot be repeated: the
    blocks that they read may have been overwritten.

    A position of a sequence has `blocks_per_position` blocks, which share the time that computing its tokens takes.
    """

    _SCAN: Final = 16  # slots examined for eviction
    _LEARNING: Final = 1 / 64  # weight of one observation in `_reuse`

    def __init__(self, block_size: int, blocks_per_position: int = 1) -> None:
        self.capacity = 0
        self.swap_cost = SwapCost(block_size, blocks_per_position)
        self.totals = SwapTotals()
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()  # the coldest first
        self._free: list[int] = []  # a heap
        self._untouched = 0  # slots from here on were never used
        self._arriving: dict[int, tuple[bytes, int]] = {}  # by block: digest and slot
        self._planned = False
        self._restored: dict[int, tuple[int, int]] = {}  # by block: slot, and position in the sequence
        self._pinned: set[int] = set()
        self._waiting: dict[str, list[bytes]] = {}  # by sequence
        self._wanted: dict[bytes, tuple[int, int]] = {}  # by how many, and position in the sequence
        self._guesses: set[bytes] = set()  # kept without a waiting sequence, and not restored so far
        self._reuse = 1.0

    @property
    def num_kept(self) -> int:
        return len(self._slot_of)

    def resize(self, capacity: int) -> None:
        """Use this many slots from now on; drop the blocks in slots beyond."""
        for digest in [d for d, slot in self._slot_of.items() if slot >= capacity]:
            self._forget(digest)
        self.capacity, self._untouched = capacity, min(self._untouched, capacity)
        self._free = [slot for slot in sorted(self._free) if slot < capacity]

    def clear(self) -> None:
        """Drop everything: the copies cannot be trusted, or may not be used."""
        for digest in list(self._slot_of):
            self._forget(digest)

    # -- waiting sequences -----------------------------------------------------------------------------

    def expect(self, sequence_id: str, digests: list[bytes], positions: Iterable[int]) -> None:
        """Note that a preempted sequence will need these blocks, at these `positions`, again."""
        if self.capacity:
            self._waiting[sequence_id] = digests
            for position, digest in zip(positions, digests, strict=False):
                count, _ = self._wanted.get(digest, (0, 0))
                self._wanted[digest] = count + 1, position

    def expect_no_more(self, sequence_id: str) -> None:
        """Forget the blocks of a sequence that was admitted or has ended."""
        for digest in self._waiting.pop(sequence_id, ()):
            count, position = self._wanted.pop(digest)
            if count > 1:
                self._wanted[digest] = count - 1, position

    # -- the step being planned ----------------------------------------------------------------

    def keep(self, block: int, digest: bytes) -> None:
        """Offload `block`, evicted from the device under `digest`, if that is worth it and there is room."""
        if self._planned:
            return
        if digest in self._slot_of:
            self._slot_of.move_to_end(digest)
            return
        waiting, position = self._wanted.get(digest, (0, 0))
        if not self.swap_cost.worth_offloading(position, 1.0 if waiting else self._reuse):
            self.totals.refused_blocks += 1
            return
        slot = self._room()
        if slot is None:
            return
        self._arriving[block] = digest, slot
        if not waiting:
            self._guesses.add(digest)

    def match(self, digests: Iterable[bytes], first: int) -> list[bytes]:
        """Return the longest kept prefix of `digests`, a sequence's from `first` on; [] if not worth restoring."""
        run = list(takewhile(self._slot_of.__contains__, digests))
        return run if run and self.swap_cost.worth_restoring(first, len(run)) else []

    def keeps(self, digest: bytes) -> bool:
        """Whether the block under `digest` is here."""
        return digest in self._slot_of

    def pin(self, digests: list[bytes]) -> None:
        """Keep the slots of `digests`, which will be restored, until `end`."""
        self._pinned.update(self._slot_of[digest] for digest in digests)

    def restore(self, digests: list[bytes], blocks: list[int], positions: Iterable[int]) -> None:
        """Plan copies of the pinned `digests` to `blocks`, at these `positions` of a sequence."""
        for position, digest, block in zip(positions, digests, blocks, strict=False):
            self._restored[block] = self._slot_of[digest], position
            self._slot_of.move_to_end(digest)
            if digest in self._guesses:
                self._guesses.remove(digest)
                self._reuse += self._LEARNING * (1.0 - self._reuse)

    def abandon(self, block: int) -> None:
        """Drop the planned copies of a freed block: no restore is needed, and its slab may be overwritten."""
        if self._restored:
            self._restored.pop(block, None)
        if block in self._arriving:
            self._drop_offload(block)

    def copies(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the step's offloads (block, slot) and restores (slot, block); blocks evicted from here to its end, for
        drafts, are not kept."""
        self._planned = True
        offloads = [(block, slot) for block, (_, slot) in self._arriving.items()]
        return offloads, [(slot, block) for block, (slot, _) in self._restored.items()]

    def lose_offloads(self) -> None:
        """Drop the offloads of a failed step, which cannot be repeated."""
        for block in list(self._arriving):
            self._drop_offload(block)

    def end(self, *, copied: bool) -> None:
        """End the step's copies, which the runner has made or never will."""
        if copied:
            self.totals.out_blocks += len(self._arriving)
            self.totals.back_blocks += len(self._restored)
            self._slot_of.update(self._arriving.values())
            self._arriving.clear()
            for _, position in self._restored.values():
                self.totals.spared_seconds += self.swap_cost.computing_block(position) or 0.0
        self.lose_offloads()
        self._restored.clear()
        self._pinned.clear()
        self._planned = False

    def set_compute_cost(self, seconds_per_token: Callable[[float], float] | None) -> None:
        """Weigh copies against computing at so many seconds per prompt token at a depth; None while unknown."""
        self.swap_cost.seconds_per_token = seconds_per_token

    def measure(self, times: SwapTimes) -> None:
        """Record the times of a step's copies."""
        self.swap_cost.measure(times)
        self.totals.copying_seconds += times.out_seconds + times.back_seconds

    def _drop_offload(self, block: int) -> None:
        digest, slot = self._arriving.pop(block)
        heapq.heappush(self._free, slot)
        self._guesses.discard(digest)

    def _room(self) -> int | None:
        """Return a free slot, or evict one of the coldest that no sequence waits for; None if there is none."""
        if self._free:
            return heapq.heappop(self._free)
        if self._untouched < self.capacity:
            self._untouched += 1
            return self._untouched - 1
        for digest, slot in islice(self._slot_of.items(), self._SCAN):
            if digest not in self._wanted and slot not in self._pinned:
                self._forget(digest)
                return heapq.heappop(self._free)
        return None

    def _forget(self, digest: bytes) -> None:
        heapq.heappush(self._free, self._slot_of.pop(digest))
        if digest in self._guesses:
            self._guesses.remove(digest)
            self._reuse -= self._LEARNING * self._reuse

    # -- integrity -----------------------------------------------------------------------------

    def check_integrity(self, waiting: Collection[str]) -> None:
        """Check that every slot is free or holds one digest, and that only sequences of `waiting` need blocks. Raises
        `IntegrityError`."""
        if self._arriving or self._restored or self._pinned:
            raise IntegrityError(f"copies {self._arriving} and {self._restored} were neither made nor given up")
        held = sorted([*self._slot_of.values(), *self._free])
        if held != list(range(self._untouched)) or self._untouched > self.capacity:
            raise IntegrityError(f"{held} are not the {self._untouched} of {self.capacity} host slots that were used")
        if stray := self._waiting.keys() - set(waiting):
            raise IntegrityError(f"{stray} do not wait, but blocks are kept for them")
        wanted: dict[bytes, int] = {}
        for digests in self._waiting.values():
            for digest in digests:
                wanted[digest] = wanted.get(digest, 0) + 1
        if wanted != {digest: count for digest, (count, _) in self._wanted.items()}:
            raise IntegrityError(f"{self._wanted} is not what {self._waiting} wait for")
        if not self._guesses <= self._slot_of.keys():
            raise IntegrityError("blocks count as kept that are not")
