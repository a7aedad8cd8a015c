"""Paged against contiguous KV memory: the same requests through both allocators, in equal memory (SPEC KV-03)."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from inference_core.bench.contiguous import ContiguousArena
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.slab_arena import SlabArena


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """Tokens of a request: its prompt, its answer as it turns out, and the longest answer that it asked for."""

    prompt: int
    output: int
    limit: int

    def __post_init__(self) -> None:
        if self.prompt < 1 or not 1 <= self.output <= self.limit:
            raise ValueError(f"{self} must have a prompt and an answer of 1 to `limit` tokens")


class AllocationResult(msgspec.Struct, frozen=True):
    """Means over the steps in which a request waited to be admitted.

    `stored_share`: tokens stored, of all that memory could hold. `unused_share`: reserved, but holding no token.
    `free_share`: not reserved; while a request waits for memory, of no use. The three sum to 1. `running`: requests
    admitted at the same time. `steps`: until all were answered. `preemptions`: times that one had to give way.
    """

    steps: int
    running_mean: float
    running_most: int
    stored_share: float
    unused_share: float
    free_share: float
    preemptions: int


class _Cache(ABC):
    """Where the tokens of running requests are kept."""

    @abstractmethod
    def admit(self, request: int, tokens: int, limit: int, running: int) -> bool:
        """Room for a request with `tokens` known and up to `limit` in all, beside `running` others, or False."""

    @abstractmethod
    def grow(self, request: int, tokens: int) -> bool:
        """Room for `tokens` in all, or False."""

    @abstractmethod
    def release(self, request: int) -> None: ...

    @property
    @abstractmethod
    def reserved(self) -> int:
        """Tokens that are spoken for."""


class _Contiguous(_Cache):
    def __init__(self, capacity: int) -> None:
        self._arena = ContiguousArena(capacity)

    def admit(self, request: int, tokens: int, limit: int, running: int) -> bool:
        return self._arena.reserve(str(request), limit) is not None

    def grow(self, request: int, tokens: int) -> bool:
        return True

    def release(self, request: int) -> None:
        self._arena.release(str(request))

    @property
    def reserved(self) -> int:
        return self._arena.reserved


class _Paged(_Cache):
    """The engine's own block pool, with its rule that every running request is promised a block to go on with."""

    def __init__(self, capacity: int, block_size: int) -> None:
        layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=block_size, dtype="bfloat16")
        blocks = capacity // block_size
        self._pool = BlockPool("study", layout, SlabArena(blocks * layout.block_bytes, layout.block_bytes))
        self._tables: dict[int, list[int]] = {}

    def admit(self, request: int, tokens: int, limit: int, running: int) -> bool:
        if self._pool.available - self._pool.blocks_for(tokens) < running:
            return False
        self._tables[request] = []
        return self.grow(request, tokens)

    def grow(self, request: int, tokens: int) -> bool:
        table = self._tables[request]
        blocks = self._pool.allocate(self._pool.blocks_for(tokens) - len(table))
        if blocks is None:
            return False
        table += blocks
        return True

    def release(self, request: int) -> None:
        self._pool.release(self._tables.pop(request))

    @property
    def reserved(self) -> int:
        return self._pool.num_referenced * self._pool.block_size


def study_allocation(
    demands: Sequence[CacheDemand], *, capacity: int, block_size: int, concurrency: int
) -> dict[str, AllocationResult]:
    """Replay `demands`, at most `concurrency` in flight, in memory for `capacity` tokens, "contiguous" and "paged".

    Time goes in steps: in each, requests are admitted in their order while there is room, and every admitted one adds a
    token. Prefix sharing has no part in it. Raises `ValueError` if a request fits not even alone.
    """
    longest = max((demand.prompt + demand.limit for demand in demands), default=0)
    if longest > capacity - capacity % block_size:
        raise ValueError(f"a request may take {longest} tokens; the memory holds {capacity}")
    return {
        "contiguous": _Replay(demands, _Contiguous(capacity), capacity, concurrency).run(),
        "paged": _Replay(demands, _Paged(capacity, block_size), capacity, concurrency).run(),
    }


class _Replay:
    """One pass of a trace over one cache."""

    def __init__(self, demands: Sequence[CacheDemand], cache: _Cache, capacity: int, concurrency: int) -> None:
        self._demands = demands
        self._cache = cache
        self._capacity = capacity
        self._concurrency = concurrency
        self._waiting = deque(range(len(demands)))
        self._stored: dict[int, int] = {}
        self._produced = [0] * len(demands)
        self._preemptions = 0
        self._samples: list[tuple[int, int, int]] = []

    def run(self) -> AllocationResult:
        steps, most = 0, 0
        while self._waiting or self._stored:
            self._admit()
            most = max(most, len(self._stored))
            if self._waiting:
                self._samples.append((sum(self._stored.values()), self._cache.reserved, len(self._stored)))
            self._advance()
            steps += 1
        return self._figures(steps, most)

    def _admit(self) -> None:
        while self._waiting and len(self._stored) < self._concurrency:
            request = self._waiting[0]
            demand = self._demands[request]
            known = demand.prompt + self._produced[request]
            if not self._cache.admit(request, known, demand.prompt + demand.limit, len(self._stored)):
                return
            self._waiting.popleft()
            self._stored[request] = known

    def _advance(self) -> None:
        """One token more for every request, the oldest first; the newest gives way where memory ends."""
        for request in list(self._stored):
            while request in self._stored and not self._cache.grow(request, self._stored[request] + 1):
                self._give_way(max(self._stored))
            if request not in self._stored:
                continue
            self._stored[request] += 1
            self._produced[request] += 1
            if self._produced[request] == self._demands[request].output:
                self._cache.release(request)
                del self._stored[request]

    def _give_way(self, request: int) -> None:
        self._cache.release(request)
        del self._stored[request]
        self._waiting.appendleft(request)
        self._preemptions += 1

    def _figures(self, steps: int, most: int) -> AllocationResult:
        stored, reserved, running = (
            sum(sample[column] for sample in self._samples) / max(1, len(self._samples)) for column in range(3)
        )
        return AllocationResult(
            steps=steps,
            running_mean=running,
            running_most=most,
            stored_share=stored / self._capacity,
            unused_share=(reserved - stored) / self._capacity,
            free_share=1 - reserved / self._capacity,
            preemptions=self._preemptions,
        )
