"""Which KV blocks of one model are kept in host memory after the device has given them up: digests and slots only."""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from inference_core.errors import IntegrityError
from inference_core.kv_cache.swap_cost import SwapCost, SwapTimes


@dataclass(slots=True)
class SwapTotals:
    """Counts since start: blocks copied out and back, seconds that took, seconds of computing that it spared, and
    blocks that were given up because copying them costs more than they are worth."""

    out_blocks: int = 0
    back_blocks: int = 0
    refused_blocks: int = 0
    copying_seconds: float = 0.0
    spared_seconds: float = 0.0


class HostCache:
    """A second tier of the prefix cache (SPEC KV-09, TI-14): full blocks by digest, in `capacity` slots.

    A block that is evicted from the device is copied to a slot (*offloaded*) if that is worth it: blocks that a
    preempted sequence waits for are wanted for certain, others as often as such blocks have been wanted so far.
    A sequence that is admitted and finds its prefix here has it copied back (*restored*) into blocks of its own. What
    was restored stays here too, so that its next eviction costs nothing.

    Copies are those of the step being planned, until `end`: what arrives in it cannot be restored in it, and what is
    restored in it keeps its slot, so that restores can be repeated if the step fails. Offloads cannot: what they read
    may have been overwritten.
    """

    _SCAN: Final = 16  # slots looked at for one to give up
    _LEARNING: Final = 1 / 64  # weight of one block's fate in `_reuse`

    def __init__(self, block_size: int) -> None:
        self.capacity = 0
        self.swap_cost = SwapCost(block_size)
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
        self._guesses: set[bytes] = set()  # kept though nobody waited for them, and not restored so far
        self._reuse = 1.0

    @property
    def num_kept(self) -> int:
        return len(self._slot_of)

    def resize(self, capacity: int) -> None:
        """Use this many slots from now on; what is in those beyond is forgotten."""
        if capacity == self.capacity:
            return
        for digest in [d for d, slot in self._slot_of.items() if slot >= capacity]:
            self._forget(digest)
        self.capacity, self._untouched = capacity, min(self._untouched, capacity)
        self._free = [slot for slot in sorted(self._free) if slot < capacity]

    def clear(self) -> None:
        """Forget everything that is kept: nothing that was copied can be trusted, or nobody may use it."""
        for digest in list(self._slot_of):
            self._forget(digest)

    # -- who waits -----------------------------------------------------------------------------

    def expect(self, sequence_id: str, digests: list[bytes]) -> None:
        """The sequence was preempted and will want these blocks, its first ones, again."""
        if self.capacity:
            self._waiting[sequence_id] = digests
            for position, digest in enumerate(digests):
                count, _ = self._wanted.get(digest, (0, 0))
                self._wanted[digest] = count + 1, position

    def expect_no_more(self, sequence_id: str) -> None:
        """The sequence was admitted, or it is over."""
        for digest in self._waiting.pop(sequence_id, ()):
            count, position = self._wanted.pop(digest)
            if count > 1:
                self._wanted[digest] = count - 1, position

    # -- the step being planned ----------------------------------------------------------------

    def keep(self, block: int, digest: bytes) -> None:
        """The device gives up `block`, cached under `digest`: offload it if that is worth it and there is room."""
        if not self.capacity or self._planned:
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
        """The longest run of `digests` that is kept, if restoring it is worth it; they follow a sequence's block
        `first`."""
        if not self._slot_of:
            return []
        run = list(takewhile(self._slot_of.__contains__, digests))
        return run if run and self.swap_cost.worth_restoring(first, len(run)) else []

    def pin(self, digests: list[bytes]) -> None:
        """These will be restored: nothing may take their slots before `end`."""
        self._pinned.update(self._slot_of[digest] for digest in digests)

    def restore(self, digests: list[bytes], blocks: list[int], first: int) -> None:
        """Copy what is kept under `digests`, which are pinned, to `blocks` of a sequence from its block `first` on."""
        for position, (digest, block) in enumerate(zip(digests, blocks, strict=True), first):
            self._restored[block] = self._slot_of[digest], position
            self._slot_of.move_to_end(digest)
            if digest in self._guesses:
                self._guesses.remove(digest)
                self._reuse += self._LEARNING * (1.0 - self._reuse)

    def abandon(self, block: int) -> None:
        """`block` is nobody's any more: what was to be restored to it is not, and what was to be offloaded from it is
        lost, since its slab may be written to by others from now on."""
        if self._restored:
            self._restored.pop(block, None)
        if block in self._arriving:
            self._drop_offload(block)

    def copies(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Offloads (block, slot) and restores (slot, block) of the step, whose plan is made now: what is evicted from
        here to its end, for drafts, is not kept."""
        self._planned = True
        offloads = [(block, slot) for block, (_, slot) in self._arriving.items()]
        return offloads, [(slot, block) for block, (slot, _) in self._restored.items()]

    def lose_offloads(self) -> None:
        """The step has failed, with its offloads done or not: its restores may be repeated, its offloads not."""
        for block in list(self._arriving):
            self._drop_offload(block)

    def end(self, *, copied: bool) -> None:
        """The runner has made the copies of the step, or it never will."""
        if copied:
            self.totals.out_blocks += len(self._arriving)
            self.totals.back_blocks += len(self._restored)
            self._slot_of.update(self._arriving.values())
            self._arriving.clear()
            for _, position in self._restored.values():
                self.totals.spared_seconds += self.swap_cost.computing(position, 1) or 0.0
        self.lose_offloads()
        self._restored.clear()
        self._pinned.clear()
        self._planned = False

    def measure(self, times: SwapTimes) -> None:
        """What the copies of a step took."""
        self.swap_cost.measure(times)
        self.totals.copying_seconds += times.out_seconds + times.back_seconds

    def _drop_offload(self, block: int) -> None:
        digest, slot = self._arriving.pop(block)
        heapq.heappush(self._free, slot)
        self._guesses.discard(digest)

    def _room(self) -> int | None:
        """A free slot, or one whose block is among the coldest and waited for by nobody."""
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
        """Between steps: every slot is free or holds one digest; only sequences of `waiting` want anything. Raises
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
