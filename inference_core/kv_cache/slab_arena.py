"""Who owns which slab of the one KV arena that all models of a core share: ids only, no memory."""

import heapq
from abc import ABC, abstractmethod

from inference_core.errors import IntegrityError, MemoryPlanError


class SlabHolder(ABC):
    """What the arena asks of a pool that holds slabs."""

    name: str

    @property
    @abstractmethod
    def unreferenced_slabs(self) -> int:
        """How many slabs could be given back at once, because they hold cached blocks only."""

    @property
    @abstractmethod
    def last_used(self) -> int | None:
        """Tick at which the slab that has been quiet longest was last used; None without a quiet slab."""

    @abstractmethod
    def evict_slab(self, colder_than: int | None) -> bool:
        """Evict one quiet slab last used before tick `colder_than` (None: any) and give it back; False if none is."""


class SlabArena:
    """An arena of `arena_bytes` cut into slabs of `slab_bytes`; each slab is free or owned by one holder.

    Raises `MemoryPlanError` when not a single slab fits. Free slabs are handed out lowest id first, so
    that equal histories give equal ids.
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
        self._holders: list[SlabHolder] = []
        self._tick = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    def join(self, holder: SlabHolder) -> None:
        """Make `holder` known, so that others may ask it for slabs."""
        self._holders.append(holder)

    def tick(self) -> int:
        """The next instant of the logical clock that orders the uses of cached blocks across pools."""
        self._tick += 1
        return self._tick

    def obtainable(self, asker: SlabHolder) -> int:
        """How many slabs `asker` could take now: the free ones and what the other holders would yield."""
        return len(self._free) + sum(h.unreferenced_slabs for h in self._holders if h is not asker)

    def take(self, asker: SlabHolder, colder_than: int | None = None) -> int | None:
        """A slab for `asker`: a free one, else one that another holder yields; None if there is neither.

        Holders give up the slab that has been quiet longest first, and only slabs last used before
        tick `colder_than`, so that a pool's own cold blocks go before its neighbours' warm ones.
        """
        if not self._free:
            self._reclaim(asker, colder_than)
        if not self._free:
            return None
        slab = heapq.heappop(self._free)
        self._owner[slab] = asker.name
        return slab

    def give_back(self, holder: SlabHolder, slab: int) -> None:
        """`holder` no longer uses `slab`."""
        if self._owner.get(slab) != holder.name:
            raise IntegrityError(f"{holder.name} gives back slab {slab}, owned by {self._owner.get(slab, 'nobody')}")
        del self._owner[slab]
        heapq.heappush(self._free, slab)

    def slabs_of(self, holder: SlabHolder) -> set[int]:
        return {slab for slab, owner in self._owner.items() if owner == holder.name}

    def check_integrity(self) -> None:
        """Every slab is free or owned, exactly once. Raises `IntegrityError`."""
        if len(set(self._free)) != len(self._free):
            raise IntegrityError(f"a slab is free twice: {sorted(self._free)}")
        if both := set(self._free) & self._owner.keys():
            raise IntegrityError(f"slabs {sorted(both)} are free and owned at once")
        if set(self._free) | self._owner.keys() != set(range(self.num_slabs)):
            raise IntegrityError(f"{self.num_slabs} slabs, but {len(self._free)} free and {len(self._owner)} owned")

    def coldest_tick(self, asker: SlabHolder) -> int | None:
        """When the slab that has been quiet longest in other hands than `asker`'s was last used; None without any."""
        ticks = (holder.last_used for holder in self._holders if holder is not asker)
        return min((tick for tick in ticks if tick is not None), default=None)

    def _reclaim(self, asker: SlabHolder, colder_than: int | None) -> None:
        others = [(h.last_used, i) for i, h in enumerate(self._holders) if h is not asker]
        coldest = min(((since, i) for since, i in others if since is not None), default=None)
        if coldest is not None:
            self._holders[coldest[1]].evict_slab(colder_than)
