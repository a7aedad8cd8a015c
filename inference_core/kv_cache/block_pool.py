"""One model's KV blocks: reference counts, a prefix cache over full blocks, slabs allocated and freed on demand."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from inference_core.errors import IntegrityError, MemoryPlanError
from inference_core.kv_cache.host_cache import HostCache
from inference_core.kv_cache.layout import KVLayout, WindowGroups
from inference_core.kv_cache.slab_arena import SlabArena, SlabHolder


@dataclass(slots=True)
class _Slab:
    """A slab that the pool owns."""

    number: int
    free: list[int]
    """Block ids; the next to allocate is last."""
    referenced: int = 0
    last_used: int = 0


class BlockPool(SlabHolder):
    """One model's blocks (SPEC KV-01, 05, 06): `b` is block `b % blocks_per_slab` of slab `b // blocks_per_slab`.

    A block of a held slab is in exactly one of three states: *free*; *referenced* by one or more block
    tables; or *evictable*: unreferenced, but its content is still cached under a digest. Only full blocks have
    digests and full blocks are never written again, so sharing needs no copy.

    New blocks come from the fullest slab with room, then from a free slab of the arena; then the coldest cache entry is
    evicted, wherever it is: another pool's unreferenced slab (no block referenced) if it was last used before this
    pool's own coldest evictable block, else that block. A slab returns to the arena once all its blocks are free.

    `host` may keep what this pool's own allocations evict; blocks of a slab taken by another pool are lost, since that
    pool's steps write there.

    *Pinned* blocks have a reference until `unpin`, so they are never evicted. They are in slabs of their own, which
    `allocate` and moves pass over: of a pinned slab nothing else could be used by other pools, and so what pins leave
    of the arena is known (`unpinned_capacity`). Such a block is free or referenced, never evictable.

    `windows`: how layers with a window use blocks of their own; None where every block holds all layers.
    """

    def __init__(self, name: str, layout: KVLayout, arena: SlabArena) -> None:
        self.name = name
        self.block_size = layout.block_size
        self.windows = WindowGroups(layout) if layout.window else None
        self.host = HostCache(layout.block_size, 1 if self.windows is None else self.windows.num_tables)
        self._arena = arena
        self._slabs: dict[int, _Slab] = {}
        self._unreferenced_slabs: OrderedDict[int, _Slab] = OrderedDict()
        self._references: dict[int, int] = {}
        self._evictable: OrderedDict[int, int] = OrderedDict()
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._moves: dict[int, int] = {}
        self._pinned_slabs: dict[int, _Slab] = {}
        self._pinned: set[int] = set()
        self._num_free = 0
        self.lay_out(layout)
        arena.join(self)

    def lay_out(self, layout: KVLayout) -> None:
        """Cut slabs into blocks of `layout`, of the same tokens, from now on. Nothing may be referenced or cached.

        Raises `MemoryPlanError` if a block is larger than a slab.
        """
        if self._slabs:
            raise IntegrityError(f"{self.name}: slabs {sorted(self._slabs)} hold blocks of the former layout")
        slab_bytes = self._arena.slab_bytes
        self.block_bytes = layout.block_bytes
        self.blocks_per_slab = layout.blocks_per_slab(slab_bytes)
        if self.blocks_per_slab < 1:
            raise MemoryPlanError(
                f"a block of {self.name} takes {layout.bytes_per_token} bytes/token x {layout.block_size} tokens = "
                f"{layout.block_bytes} bytes, more than a slab of {slab_bytes}; enlarge slabs"
            )
        self._by_room: list[dict[int, _Slab]] = [{} for _ in range(self.blocks_per_slab + 1)]

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Blocks that the whole arena would hold for this model."""
        return self._arena.num_slabs * self.blocks_per_slab

    @property
    def unpinned_capacity(self) -> int:
        """Blocks that the slabs without pinned blocks, of any pool, would hold for this model."""
        return (self._arena.num_slabs - self._arena.num_pinned) * self.blocks_per_slab

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def num_pinned_slabs(self) -> int:
        return len(self._pinned_slabs)

    @property
    def num_referenced(self) -> int:
        return len(self._references)

    def num_held_by(self, blocks: Iterable[int]) -> int:
        """How many blocks have no reference but those of the tables that make up `blocks`."""
        return sum(self._references[block] == count for block, count in Counter(blocks).items())

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_slabs(self) -> int:
        return len(self._slabs)

    @property
    def available(self) -> int:
        """How many blocks `allocate` can provide now, evicting cached content."""
        return self._num_free + len(self._evictable) + self._arena.obtainable(self) * self.blocks_per_slab

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def blocks_held(self, num_tokens: int) -> int:
        """The most blocks that a sequence of so many tokens holds at once."""
        return self.blocks_for(num_tokens) if self.windows is None else self.windows.blocks_for(num_tokens)

    def tokens_in(self, blocks: int) -> int:
        return blocks * self.block_size if self.windows is None else self.windows.tokens_in(blocks)

    def count_evictable(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` `acquire` would take from `available`."""
        return sum(block in self._evictable for block in blocks)

    # -- allocation ----------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks with one reference each; None, with nothing changed, if there are too few."""
        if count > self._num_free and count > self.available:
            return None
        blocks: list[int] = []
        while (lacking := count - len(blocks)) > 0:
            slab = self._fullest_with_room() or self._another_slab()
            if slab is None:
                blocks += self._reuse_coldest(lacking)
                continue
            room = len(slab.free)
            taken = slab.free[: -lacking - 1 : -1]
            del slab.free[-len(taken) :]
            self._refile(slab, room)
            if not slab.referenced:
                self._unreferenced_slabs.pop(slab.number, None)
            slab.referenced += len(taken)
            blocks += taken
        self._references.update(dict.fromkeys(blocks, 1))
        return blocks

    def acquire(self, blocks: list[int]) -> None:
        """Add a reference to each of `blocks`, which are cached or referenced."""
        references = self._references
        for block in blocks:
            count = references.get(block)
            if count is not None:
                references[block] = count + 1
                continue
            del self._evictable[block]
            references[block] = 1
            self._enter(self._slabs[block // self.blocks_per_slab])

    def release(self, blocks: list[int]) -> None:
        """Drop a reference to each of `blocks`; an unreferenced block becomes evictable if cached, else free.

        The last block goes first, so a chain's tail is evicted before its head, which is useful without the tail.
        """
        now = self._arena.tick()
        references, evictable, cached, slabs = self._references, self._evictable, self._digest_of, self._slabs
        for block in reversed(blocks):
            count = references[block] - 1
            if count:
                references[block] = count
                continue
            del references[block]
            slab = slabs[block // self.blocks_per_slab]
            slab.referenced -= 1
            if slab.referenced == 0:
                slab.last_used = now
                self._unreferenced_slabs[slab.number] = slab
            if block in cached:
                evictable[block] = now
            else:
                if self.host.capacity:
                    self.host.abandon(block)
                self._free(block)

    # -- prefix cache --------------------------------------------------------------------------

    def cached(self, digest: bytes) -> int | None:
        return self._block_of.get(digest)

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix of a chain; changes nothing."""
        blocks: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def register(self, blocks: list[int], digests: list[bytes]) -> None:
        """Cache the full, referenced `blocks` under `digests`; equal content cached before stays."""
        block_of, digest_of = self._block_of, self._digest_of
        for block, digest in zip(blocks, digests, strict=True):
            if block_of.setdefault(digest, block) == block:
                digest_of[block] = digest

    def restore(self, digests: list[bytes], positions: Iterable[int]) -> list[int]:
        """Allocate blocks, which fit, for what `host` keeps under `digests`, at these `positions` of a sequence.

        They are private to the sequence until `register`, after the step that fills them."""
        self.host.pin(digests)
        blocks = self.allocate(len(digests))
        assert blocks is not None  # the caller checked `available`
        self.host.restore(digests, blocks, positions)
        return blocks

    def drop_cache(self) -> None:
        """Drop all cached content that is not pinned, in host memory too; referenced blocks stay with their tables."""
        self.host.clear()
        for block in list(self._evictable):
            self._evict(block)
        self._digest_of = {block: digest for block, digest in self._digest_of.items() if block in self._pinned}
        self._block_of = {digest: block for block, digest in self._digest_of.items()}

    # -- pinned blocks -------------------------------------------------------------------------

    def slabs_to_pin(self, count: int) -> int:
        """How many more slabs `allocate_pinned` takes for `count` blocks."""
        room = sum(len(slab.free) for slab in self._pinned_slabs.values())
        return -(-max(0, count - room) // self.blocks_per_slab)

    def allocate_pinned(self, count: int) -> list[int] | None:
        """Allocate `count` pinned blocks, evicting cached content; None, with nothing changed, if slabs are lacking."""
        slabs = self.slabs_to_pin(count)
        if slabs > self._arena.obtainable(self) + len(self._unreferenced_slabs):
            return None
        for _ in range(slabs):
            self._take_slab_to_pin()
        blocks: list[int] = []
        for slab in self._pinned_slabs.values():
            while slab.free and len(blocks) < count:
                blocks.append(slab.free.pop())
                slab.referenced += 1
        self._references.update(dict.fromkeys(blocks, 1))
        self._pinned.update(blocks)
        return blocks

    def cache_pinned(self, blocks: list[int], digests: list[bytes]) -> None:
        """Cache the pinned `blocks`, now full, under `digests`, in place of equal content that is not pinned."""
        for block, digest in zip(blocks, digests, strict=True):
            other = self._block_of.get(digest)
            if other is not None:
                if other in self._pinned:
                    continue  # Of another prefix, which begins alike.
                if other in self._evictable:
                    self._evict(other)
                else:
                    del self._digest_of[other]
            self._block_of[digest], self._digest_of[block] = block, digest

    def unpin(self, blocks: list[int]) -> None:
        """Drop the pinned `blocks` from the cache; each is free once no table holds it."""
        for block in blocks:
            self._pinned.discard(block)
            digest = self._digest_of.pop(block, None)
            if digest is not None:
                del self._block_of[digest]
        self.release(blocks)

    def _take_slab_to_pin(self) -> None:
        number = self._arena.take(self)
        if number is None:
            self.evict_slab(None)
            number = self._arena.take(self)
        assert number is not None  # the caller checked `obtainable` and the unreferenced slabs
        self._arena.pin(number)
        self._slabs[number] = self._pinned_slabs[number] = self._empty_slab(number)

    def _empty_slab(self, number: int) -> _Slab:
        return _Slab(number, list(self._blocks_of(number))[::-1])

    # -- slabs ---------------------------------------------------------------------------------

    @property
    def unreferenced_slabs(self) -> int:
        return len(self._unreferenced_slabs)

    @property
    def last_used(self) -> int | None:
        return next((slab.last_used for slab in self._unreferenced_slabs.values()), None)

    def evict_slab(self, colder_than: int | None) -> bool:
        """Evict the unreferenced slab with the fewest cached blocks, of equals the coldest, and give it back."""
        cold = takewhile(lambda s: colder_than is None or s.last_used < colder_than, self._unreferenced_slabs.values())
        slab = max(cold, key=lambda s: len(s.free), default=None)
        if slab is None:
            return False
        self._drop_evictable(slab)
        return True

    # -- moves ---------------------------------------------------------------------------------

    def plan_moves(self, most: int) -> dict[int, int]:
        """Plan up to `most` moves of referenced blocks that empty slabs into fuller ones; return block by block.

        The slabs with the fewest references are emptied, as many as the others have room for; their cached content, and
        evictable blocks where room is needed, are evicted. References and digests move to the new blocks at once; the
        old ones stay out of use until `finish_moves`, after the content was copied, or `undo_moves`.
        """
        unpinned = (s for s in self._slabs.values() if s.referenced and s.number not in self._pinned_slabs)
        slabs = sorted(unpinned, key=lambda s: (s.referenced, -s.number))
        while len(slabs) > 1 and len(self._moves) < most:
            source = slabs.pop(0)
            if source.referenced > sum(self.blocks_per_slab - s.referenced for s in slabs):
                break
            self._drop_evictable(source)
            for block in [b for b in self._blocks_of(source.number) if b in self._references][
                : most - len(self._moves)
            ]:
                self._move(block, self._room_in(slabs[::-1]))
        return self._moves.copy()

    def finish_moves(self) -> None:
        """Free the old blocks: their content was copied."""
        for block in self._moves:
            self._leave(block)
        self._moves.clear()

    def undo_moves(self) -> None:
        """Restore the old blocks and free the new ones: the content was not copied."""
        moved, self._moves = self._moves, {}
        for block, target in moved.items():
            self._carry(target, block)
            self._leave(target)

    def _blocks_of(self, slab: int) -> range:
        return range(slab * self.blocks_per_slab, (slab + 1) * self.blocks_per_slab)

    def _drop_evictable(self, slab: _Slab) -> None:
        for block in self._blocks_of(slab.number):
            if block in self._evictable:
                self._evict(block)

    def _room_in(self, slabs: list[_Slab]) -> _Slab:
        """Return the first of `slabs` not full of references, with a free block; evict its coldest block if need be.

        No slab receives blocks before all fuller ones are full, so none both receives blocks and is emptied.
        """
        slab = next(s for s in slabs if s.referenced < self.blocks_per_slab)
        if not slab.free:
            evictable = (block for block in self._blocks_of(slab.number) if block in self._evictable)
            self._evict(min(evictable, key=self._evictable.__getitem__))
        return slab

    def _move(self, block: int, slab: _Slab) -> None:
        room = len(slab.free)
        target = slab.free.pop()
        self._refile(slab, room)
        slab.referenced += 1
        self._carry(block, target)
        self._moves[block] = target

    def _carry(self, block: int, target: int) -> None:
        """Move references and digest from `block` to `target`."""
        self._references[target] = self._references.pop(block)
        if (digest := self._digest_of.pop(block, None)) is not None:
            self._digest_of[target], self._block_of[digest] = digest, target

    def _leave(self, block: int) -> None:
        """Free `block`, whose references and content have moved."""
        slab = self._slabs[block // self.blocks_per_slab]
        slab.referenced -= 1
        if not slab.referenced:
            slab.last_used = self._arena.tick()
            self._unreferenced_slabs[slab.number] = slab
        self._free(block)

    def _fullest_with_room(self) -> _Slab | None:
        if not self._num_free:
            return None
        for slabs in self._by_room[1:]:
            if slabs:
                return next(iter(slabs.values()))
        return None

    def _another_slab(self) -> _Slab | None:
        """Take a slab from the arena, from another pool only if it is colder than this pool's coldest content."""
        coldest = next(iter(self._evictable.values()), None)
        number = self._arena.take(self, colder_than=coldest)
        if number is None:
            return None
        slab = self._slabs[number] = self._by_room[self.blocks_per_slab][number] = self._empty_slab(number)
        self._num_free += self.blocks_per_slab
        return slab

    def _reuse_coldest(self, most: int) -> list[int]:
        """Take one to `most` evictable blocks, coldest first, while no other pool's slab is colder."""
        limit = self._arena.coldest_tick(self)
        blocks: list[int] = []
        while self._evictable and len(blocks) < most:
            block, tick = self._evictable.popitem(last=False)
            if blocks and limit is not None and limit < tick:
                self._evictable[block] = tick
                self._evictable.move_to_end(block, last=False)
                break
            digest = self._digest_of.pop(block)
            del self._block_of[digest]
            if self.host.capacity:
                self.host.keep(block, digest)
            self._enter(self._slabs[block // self.blocks_per_slab])
            blocks.append(block)
        return blocks

    def _enter(self, slab: _Slab) -> None:
        """One more block of `slab` is referenced."""
        if not slab.referenced:
            self._unreferenced_slabs.pop(slab.number, None)
        slab.referenced += 1

    def _refile(self, slab: _Slab, room: int) -> None:
        """Update the index of a slab that had `room` free blocks before."""
        del self._by_room[room][slab.number]
        self._by_room[len(slab.free)][slab.number] = slab
        self._num_free += len(slab.free) - room

    def _evict(self, block: int) -> None:
        del self._evictable[block]
        del self._block_of[self._digest_of.pop(block)]
        self._free(block)

    def _free(self, block: int) -> None:
        slab = self._slabs[block // self.blocks_per_slab]
        slab.free.append(block)
        is_empty = len(slab.free) == self.blocks_per_slab
        if slab.number in self._pinned_slabs:
            if is_empty:
                del self._slabs[slab.number], self._pinned_slabs[slab.number], self._unreferenced_slabs[slab.number]
                self._arena.give_back(self, slab.number)
            return
        self._refile(slab, len(slab.free) - 1)
        if is_empty:
            del self._slabs[slab.number], self._unreferenced_slabs[slab.number]
            del self._by_room[self.blocks_per_slab][slab.number]
            self._num_free -= self.blocks_per_slab
            self._arena.give_back(self, slab.number)

    # -- integrity -----------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Check that every block is free, evictable or referenced as `tables` say. Raises `IntegrityError`."""
        held = Counter(block for table in tables for block in table)
        held.update(self._pinned)
        if held != self._references:
            wrong = next(b for b in held.keys() | self._references.keys() if held[b] != self._references.get(b, 0))
            raise IntegrityError(
                f"{self.name}: block {wrong} is in {held[wrong]} tables, "
                f"but counts {self._references.get(wrong, 0)} references"
            )
        if self._moves:
            raise IntegrityError(f"{self.name}: moves {self._moves} were neither finished nor undone")
        if (owned := self._arena.slabs_of(self)) != self._slabs.keys():
            raise IntegrityError(f"{self.name}: holds slabs {sorted(self._slabs)}, but owns {sorted(owned)}")
        for slab in self._slabs.values():
            self._check_slab(slab)
        unpinned = [slab for number, slab in self._slabs.items() if number not in self._pinned_slabs]
        if self._num_free != sum(len(slab.free) for slab in unpinned):
            raise IntegrityError(f"{self.name}: counts {self._num_free} free blocks, which its slabs do not hold")
        if {block: digest for digest, block in self._block_of.items()} != self._digest_of:
            raise IntegrityError(f"{self.name}: digests and blocks do not name each other")
        if stray := self._digest_of.keys() - self._evictable.keys() - self._references.keys():
            raise IntegrityError(f"{self.name}: blocks {sorted(stray)} are cached but neither evictable nor referenced")

    def _check_slab(self, slab: _Slab) -> None:
        blocks, free = self._blocks_of(slab.number), set(slab.free)
        if len(free) != len(slab.free):
            raise IntegrityError(f"{self.name}: slab {slab.number} lists a free block twice: {slab.free}")
        for block in blocks:
            states = (block in free, block in self._evictable, block in self._references)
            if sum(states) != 1:
                raise IntegrityError(f"{self.name}: block {block} is (free, evictable, referenced) = {states}")
            if block in self._evictable and block not in self._digest_of:
                raise IntegrityError(f"{self.name}: evictable block {block} has no digest")
        referenced = sum(block in self._references for block in blocks)
        if slab.referenced != referenced:
            raise IntegrityError(f"{self.name}: slab {slab.number} counts {slab.referenced} of {referenced} references")
        if len(free) == self.blocks_per_slab:
            raise IntegrityError(f"{self.name}: slab {slab.number} is empty but not given back")
        if (slab.number in self._unreferenced_slabs) != (referenced == 0):
            raise IntegrityError(f"{self.name}: slab {slab.number} has {referenced} references but is filed wrongly")
        filed = [room for room, slabs in enumerate(self._by_room) if slab.number in slabs]
        if filed != ([] if slab.number in self._pinned_slabs else [len(free)]):
            raise IntegrityError(f"{self.name}: slab {slab.number} with {len(free)} free blocks is filed wrongly")
        if slab.number in self._pinned_slabs:
            if any(block in self._evictable for block in blocks):
                raise IntegrityError(f"{self.name}: slab {slab.number} is pinned but holds evictable blocks")
        elif not self._pinned.isdisjoint(blocks):
            raise IntegrityError(f"{self.name}: slab {slab.number} holds pinned blocks but is not pinned")
