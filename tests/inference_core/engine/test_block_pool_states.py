"""Stateful property test of block pools over one arena, without a scheduler (SPEC KV-01, KV-05)."""

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
        self.content: dict[tuple[str, int], bytes] = {}

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 20), digests=st.integers(0, 30))
    def take(self, name: str, count: int, digests: int) -> None:
        """`allocate` keeps the promise of `available`, and gives nobody's block away."""
        pool, promised = self.pools[name], self.pools[name].available
        blocks = pool.allocate(count)
        assert (blocks is not None) == (count <= promised)
        if blocks is None:
            return
        held = {block for table in self.tables[name] for block in table}
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

    @rule(name=st.sampled_from(NAMES), first=st.integers(0, 39), count=st.integers(1, 4))
    def hit(self, name: str, first: int, count: int) -> None:
        """A match names blocks whose last content is what was asked for."""
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

    def teardown(self) -> None:
        """Without tables and cache every slab is free again: the free count is restored."""
        if hasattr(self, "arena"):
            for name, pool in self.pools.items():
                for table in self.tables[name]:
                    pool.release(table)
                pool.drop_cache()
            assert self.arena.num_free == self.arena.num_slabs


class TestPoolsUnderRandomLoad(PoolMachine.TestCase):
    """Every block is free, idle or referenced, exactly once, whatever is taken, shared, dropped and evicted."""

    settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
