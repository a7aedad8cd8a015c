"""Which pool owns which slab of the KV arena that all models of a core share: ids only, no memory."""

import heapq
from abc import ABC, abstractmethod

from inference_core.errors import IntegrityError, MemoryPlanError


class SlabHolder(ABC):
    """The interface of a pool that owns slabs."""

    name: str

    @property
    @abstractmethod
    def unreferenced_slabs(self) -> int:
        """How many slabs hold no referenced block, so that they could be evicted."""

    @property
    @abstractmethod
    def last_used(self) -> int | None:
        """Tick of the last use of the longest unreferenced slab; None if there is none."""

    @abstractmethod
    def evict_slab(self, colder_than: int | None) -> bool:
        """Evict one unreferenced slab last used before tick `colder_than` (None: any); False if there is none."""


class SlabArena:
    """An arena of `arena_bytes` cut into slabs of `slab_bytes`; each slab is free or owned by one holder.

    Raises `MemoryPlanError` when not a single slab fits. The free slab with the lowest id is taken first, so that
    equal histories give equal ids.
    """

    def __init__(self, arena_bytes: int, slab_bytes: int) -> None:
        if slab_bytes < 1 or arena_bytes < slab_bytes:
            raise MemoryPlanError(
                f"an arena of {arena_bytes} bytes holds no slab of {slab_bytes} bytes; enlarge it or shrink slabs"
            )
        self.slab_bytes = slab_bytes
        self.num_slabs = arena_bytes // slab_bytes
        self._free = list(range(self.num_slabs))
        self._owner: dict[int, str] = {}
        self._pinned: set[int] = set()
        self._holders: list[SlabHolder] = []
        self._tick = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_pinned(self) -> int:
        """How many slabs hold pinned blocks alone."""
        return len(self._pinned)

    def join(self, holder: SlabHolder) -> None:
        """Register `holder`, so that its unreferenced slabs can be taken."""
        self._holders.append(holder)

    def tick(self) -> int:
        """Advance and return the logical clock that orders the uses of cached blocks across pools."""
        self._tick += 1
        return self._tick

    def obtainable(self, asker: SlabHolder) -> int:
        """How many slabs `asker` could take now: the free ones and the unreferenced ones of other holders."""
        return len(self._free) + sum(h.unreferenced_slabs for h in self._holders if h is not asker)

    def take(self, asker: SlabHolder, colder_than: int | None = None) -> int | None:
        """Take a slab for `asker`: a free one, else one evicted from another holder; None if there is neither.

        The longest unreferenced slab is evicted first, and only if it was last used before tick `colder_than`, so that
        a pool's own cold blocks go before other pools' warm ones.
        """
        if not self._free:
            self._reclaim(asker, colder_than)
        if not self._free:
            return None
        slab = heapq.heappop(self._free)
        self._owner[slab] = asker.name
        return slab

    def pin(self, slab: int) -> None:
        """Count `slab`, which has an owner, as pinned until it is given back."""
        self._pinned.add(slab)

    def give_back(self, holder: SlabHolder, slab: int) -> None:
        """Free `slab`, which `holder` no longer uses."""
        if self._owner.get(slab) != holder.name:
            raise IntegrityError(f"{holder.name} gives back slab {slab}, owned by {self._owner.get(slab, 'no pool')}")
        del self._owner[slab]
        self._pinned.discard(slab)
        heapq.heappush(self._free, slab)

    def slabs_of(self, holder: SlabHolder) -> set[int]:
        return {slab for slab, owner in self._owner.items() if owner == holder.name}

    def check_integrity(self) -> None:
        """Check that every slab is free or owned, exactly once. Raises `IntegrityError`."""
        if len(set(self._free)) != len(self._free):
            raise IntegrityError(f"a slab is free twice: {sorted(self._free)}")
        if both := set(self._free) & self._owner.keys():
            raise IntegrityError(f"slabs {sorted(both)} are free and owned at once")
        if set(self._free) | self._owner.keys() != set(range(self.num_slabs)):
            raise IntegrityError(f"{self.num_slabs} slabs, but {len(self._free)} free and {len(self._owner)} owned")
        if not self._pinned <= self._owner.keys():
            raise IntegrityError(f"slabs {sorted(self._pinned - self._owner.keys())} are pinned and free at once")

    def coldest_tick(self, asker: SlabHolder) -> int | None:
        """Tick of the last use of the longest unreferenced slab that `asker` does not own; None without any."""
        ticks = (holder.last_used for holder in self._holders if holder is not asker)
        return min((tick for tick in ticks if tick is not None), default=None)

    def _reclaim(self, asker: SlabHolder, colder_than: int | None) -> None:
        others = [(h.last_used, i) for i, h in enumerate(self._holders) if h is not asker]
        coldest = min(((since, i) for since, i in others if since is not None), default=None)
        if coldest is not None:
            self._holders[coldest[1]].evict_slab(colder_than)
