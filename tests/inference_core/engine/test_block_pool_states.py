"""Stateful property test of block pools over one arena, without a scheduler (SPEC KV-01, KV-05, KV-06)."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.slab_arena import SlabArena
from tests.examples import examples

SLAB = 1024
NAMES = ("wide", "narrow", "odd")
WIDTHS = {"wide": 8, "narrow": 1, "odd": 5}


class PoolMachine(RuleBasedStateMachine):
    """Tables take, share and drop blocks; the model keeps what each block was last filled with."""

    @initialize(slabs=st.integers(1, 5))
    def start(self, slabs: int) -> None:
        self.arena = SlabArena(slabs * SLAB, SLAB)
        self.pools = {
            name: BlockPool(
                name,
                KVLayout(num_layers=width, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32"),
                self.arena,
            )
            for name, width in WIDTHS.items()
        }
        self.tables: dict[str, list[list[int]]] = {name: [] for name in NAMES}
        self.pins: dict[str, list[tuple[list[int], list[bytes]]]] = {name: [] for name in NAMES}
        self.content: dict[tuple[str, int], bytes] = {}

    def held(self, name: str) -> set[int]:
        pinned = [blocks for blocks, _ in self.pins[name]]
        return {block for table in [*self.tables[name], *pinned] for block in table}

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 20), digests=st.integers(0, 30))
    def take(self, name: str, count: int, digests: int) -> None:
        """`allocate` provides what `available` says, and never a referenced block."""
        pool, promised = self.pools[name], self.pools[name].available
        blocks = pool.allocate(count)
        assert (blocks is not None) == (count <= promised)
        if blocks is None:
            return
        held = self.held(name)
        assert len(set(blocks)) == count
        assert not held & set(blocks)
        self.tables[name].append(blocks)
        for offset, block in enumerate(blocks):
            self.content.pop((name, block), None)
            # Every other block is left without a digest, as a last, partly filled one would be.
            if offset % 2 == 0:
                key = ((digests + offset) % 40).to_bytes(16, "little")
                self.content[name, block] = key
                pool.register([block], [key])

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12), first=st.integers(0, 39))
    def pin(self, name: str, count: int, first: int) -> None:
        """Pinned blocks were not held before, and stay cached in place of equal content."""
        pool, held = self.pools[name], self.held(name)
        blocks = pool.allocate_pinned(count)
        if blocks is None:
            return
        assert len(set(blocks)) == count
        assert not held & set(blocks)
        keys = [((first + i) % 40).to_bytes(16, "little") for i in range(count)]
        self.content.update({(name, block): key for block, key in zip(blocks, keys, strict=True)})
        self.pins[name].append((blocks, keys))
        pool.cache_pinned(blocks, keys)

    @precondition(lambda self: any(self.pins.values()))
    @rule(which=st.integers(0, 1000))
    def unpin(self, which: int) -> None:
        live = [(name, i) for name in NAMES for i in range(len(self.pins[name]))]
        name, i = live[which % len(live)]
        blocks, _ = self.pins[name].pop(i)
        self.pools[name].unpin(blocks)
        for rest in self.pins[name]:
            self.pools[name].cache_pinned(*rest)

    @rule(name=st.sampled_from(NAMES), first=st.integers(0, 39), count=st.integers(1, 4))
    def hit(self, name: str, first: int, count: int) -> None:
        """A match returns blocks that hold the requested content."""
        pool = self.pools[name]
        keys = [((first + 2 * i) % 40).to_bytes(16, "little") for i in range(count)]
        blocks = pool.match(keys)
        assert [self.content[name, block] for block in blocks] == keys[: len(blocks)]
        if blocks:
            before = pool.available
            cost = pool.count_evictable(blocks)
            pool.acquire(blocks)
            assert before - pool.available == cost
            self.tables[name].append(blocks)

    @precondition(lambda self: any(self.tables.values()))
    @rule(which=st.integers(0, 1000))
    def drop(self, which: int) -> None:
        live = [(name, i) for name in NAMES for i in range(len(self.tables[name]))]
        name, i = live[which % len(live)]
        self.pools[name].release(self.tables[name].pop(i))

    @rule(name=st.sampled_from(NAMES))
    def drop_cache(self, name: str) -> None:
        self.pools[name].drop_cache()
        assert self.pools[name].num_evictable == 0

    @invariant()
    def integrity_holds(self) -> None:
        if hasattr(self, "arena"):
            self.arena.check_integrity()
            for name, pool in self.pools.items():
                pool.check_integrity(self.tables[name])
                pinned = {block for blocks, _ in self.pins[name] for block in blocks}
                assert pool.num_pinned == len(pinned)
                assert all(pool.match([key])[0] in pinned for _, keys in self.pins[name] for key in keys)

    def teardown(self) -> None:
        """Without tables and cache every slab is free again: the free count is restored."""
        if hasattr(self, "arena"):
            for name, pool in self.pools.items():
                for table in self.tables[name]:
                    pool.release(table)
                for blocks, _ in self.pins[name]:
                    pool.unpin(blocks)
                pool.drop_cache()
            assert self.arena.num_free == self.arena.num_slabs


class TestPoolsUnderRandomLoad(PoolMachine.TestCase):
    """Every block is free, idle or referenced, exactly once, whatever is taken, shared, dropped and evicted."""

    settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
