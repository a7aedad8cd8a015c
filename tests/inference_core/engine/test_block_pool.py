"""Blocks are counted, cached and returned exactly; slabs follow the load (SPEC KV-01, KV-05)."""

import pytest

from inference_core.errors import IntegrityError, MemoryPlanError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.slab_arena import SlabArena

SLAB = 1024
FOUR_PER_SLAB = KVLayout(num_layers=4, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32")
TWO_PER_SLAB = KVLayout(num_layers=8, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32")


def digest(i: int) -> bytes:
    return i.to_bytes(16, "little")


def cache(pool: BlockPool, *digests: int) -> list[int]:
    """Fill one block per digest and let go of them, so that they are idle."""
    blocks = pool.allocate(len(digests))
    assert blocks is not None
    for block, i in zip(blocks, digests, strict=True):
        pool.register([block], [digest(i)])
    pool.release(blocks)
    return blocks


def test_a_block_larger_than_a_slab_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(MemoryPlanError, match=r"64 bytes/token x 4 tokens = 256 bytes, more than a slab of 255"):
        BlockPool("m", FOUR_PER_SLAB, SlabArena(1024, 255))


def test_an_arena_smaller_than_a_slab_is_refused() -> None:
    with pytest.raises(MemoryPlanError, match="100 bytes holds no slab of 1024"):
        SlabArena(100, 1024)


def test_block_ids_name_slab_and_index() -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(2 * SLAB, SLAB))
    assert pool.allocate(6) == [0, 1, 2, 3, 4, 5]
    assert pool.capacity == 8
    assert pool.available == 2


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    assert pool.allocate(5) is None
    assert pool.num_slabs == 0
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert pool.allocate(1) is None


def test_new_blocks_come_from_the_fullest_slab() -> None:
    arena = SlabArena(3 * SLAB, SLAB)
    pool = BlockPool("m", FOUR_PER_SLAB, arena)
    pool.allocate(12)
    pool.release([0, 1, 2])  # slab 0 has three free blocks
    pool.release([5])  # slab 1 has one
    assert pool.allocate(2) == [5, 0]


def test_a_slab_returns_to_the_arena_when_its_last_block_is_free() -> None:
    arena = SlabArena(2 * SLAB, SLAB)
    pool = BlockPool("m", FOUR_PER_SLAB, arena)
    blocks = pool.allocate(5)
    assert blocks is not None
    pool.release(blocks[4:])
    assert arena.num_free == 1
    pool.release(blocks[:4])
    assert arena.num_free == 2
    pool.check_integrity([])


def test_a_shared_block_is_free_only_after_its_last_reference() -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.acquire(blocks)
    pool.check_integrity([blocks, blocks])
    pool.release(blocks)
    pool.check_integrity([blocks])
    pool.release(blocks)
    assert pool.num_slabs == 0


def test_a_match_is_the_longest_cached_prefix() -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    blocks = cache(pool, 1, 2, 3)
    assert pool.match([digest(1), digest(2), digest(9), digest(3)]) == blocks[:2]
    assert pool.match([digest(9), digest(1)]) == []


def test_the_least_recently_used_content_is_evicted_first_and_tails_before_heads() -> None:
    """SPEC KV-05."""
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    head, _ = cache(pool, 1, 2)
    cache(pool, 3, 4)
    pool.acquire([head])
    pool.release([head])
    order = []
    for _ in range(4):
        pool.allocate(1)
        order.append([i for i in range(1, 5) if not pool.match([digest(i)])])
    assert order == [[2], [2, 4], [2, 3, 4], [1, 2, 3, 4]]


def test_content_cached_twice_keeps_its_first_block() -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    first = cache(pool, 1)
    second = cache(pool, 1)
    assert first != second
    assert pool.match([digest(1)]) == first
    assert pool.num_evictable == 1
    pool.check_integrity([])


def test_dropping_the_cache_spares_referenced_blocks() -> None:
    arena = SlabArena(2 * SLAB, SLAB)
    pool = BlockPool("m", FOUR_PER_SLAB, arena)
    held = pool.allocate(1)
    assert held is not None
    pool.register([held[0]], [digest(7)])
    cache(pool, 1, 2, 3, 4)
    pool.drop_cache()
    pool.check_integrity([held])
    assert pool.match([digest(7)]) == []
    assert arena.num_free == 1


def test_a_pool_takes_a_colder_neighbours_slab_before_its_own_cache() -> None:
    arena = SlabArena(2 * SLAB, SLAB)
    idle, busy = BlockPool("idle", FOUR_PER_SLAB, arena), BlockPool("busy", TWO_PER_SLAB, arena)
    cache(idle, 1, 2)
    cache(busy, 3, 4)
    assert busy.available == 4
    busy.allocate(1)
    assert idle.num_slabs == 0
    assert len(busy.match([digest(3), digest(4)])) == 2


def test_a_pool_evicts_its_own_cache_before_a_warmer_neighbours() -> None:
    arena = SlabArena(2 * SLAB, SLAB)
    idle, busy = BlockPool("idle", FOUR_PER_SLAB, arena), BlockPool("busy", TWO_PER_SLAB, arena)
    cache(busy, 3, 4)
    cache(idle, 1, 2)
    busy.allocate(1)
    assert len(idle.match([digest(1), digest(2)])) == 2
    assert len(busy.match([digest(3), digest(4)])) == 1


def test_of_several_quiet_slabs_the_emptiest_is_yielded() -> None:
    arena = SlabArena(3 * SLAB, SLAB)
    idle, busy = BlockPool("idle", FOUR_PER_SLAB, arena), BlockPool("busy", FOUR_PER_SLAB, arena)
    full = idle.allocate(4)
    sparse = idle.allocate(4)
    assert full is not None
    assert sparse is not None
    for i, block in enumerate(full):
        idle.register([block], [digest(i)])
    idle.register([sparse[0]], [digest(9)])
    idle.release(full)
    idle.release(sparse)
    assert busy.allocate(5) is not None
    assert len(idle.match([digest(i) for i in range(4)])) == 4
    assert idle.match([digest(9)]) == []


def test_a_slab_with_a_referenced_block_is_never_yielded() -> None:
    arena = SlabArena(SLAB, SLAB)
    holder, asker = BlockPool("holder", FOUR_PER_SLAB, arena), BlockPool("asker", FOUR_PER_SLAB, arena)
    cache(holder, 1, 2)
    hit = holder.match([digest(1)])
    holder.acquire(hit)
    assert asker.allocate(1) is None
    holder.release(hit)
    assert asker.allocate(1) is not None


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda pool: pool._references.update({0: 2}), "block 0 is in 1 tables, but counts 2"),
        (lambda pool: pool._slabs[0].free.append(0), "block 0 is"),
        (lambda pool: pool._slabs[0].free.append(3), "free block twice"),
        (lambda pool: pool._evictable.update({0: 1}), "block 0 is"),
        (lambda pool: pool._digest_of.update({0: digest(5)}), "do not name each other"),
        (lambda pool: pool._arena._owner.update({0: "other"}), "holds slabs"),
        (lambda pool: setattr(pool._slabs[0], "referenced", 3), "counts 3 of 1 references"),
        (lambda pool: setattr(pool, "_num_free", 0), "counts 0 free blocks"),
        (lambda pool: pool._by_room[3].clear(), "filed wrongly"),
        (lambda pool: pool._unreferenced_slabs.update({0: pool._slabs[0]}), "filed wrongly"),
    ],
)
def test_every_violation_is_named(corrupt, message: str) -> None:
    pool = BlockPool("m", FOUR_PER_SLAB, SlabArena(SLAB, SLAB))
    table = pool.allocate(1)
    assert table is not None
    pool.check_integrity([table])
    corrupt(pool)
    with pytest.raises(IntegrityError, match=message):
        pool.check_integrity([table])


def test_a_slab_owned_and_free_at_once_is_named() -> None:
    arena = SlabArena(2 * SLAB, SLAB)
    BlockPool("m", FOUR_PER_SLAB, arena).allocate(1)
    arena._free.append(0)
    with pytest.raises(IntegrityError, match="free and owned at once"):
        arena.check_integrity()


def test_only_its_owner_may_give_a_slab_back() -> None:
    arena = SlabArena(SLAB, SLAB)
    owner, thief = BlockPool("owner", FOUR_PER_SLAB, arena), BlockPool("thief", FOUR_PER_SLAB, arena)
    owner.allocate(1)
    with pytest.raises(IntegrityError, match="thief gives back slab 0, owned by owner"):
        arena.give_back(thief, 0)


def test_pinned_blocks_have_slabs_of_their_own_which_allocation_and_moves_pass_over() -> None:
    arena = SlabArena(3 * SLAB, SLAB)
    pool = BlockPool("m", FOUR_PER_SLAB, arena)
    pinned, others = pool.allocate_pinned(1), pool.allocate(5)
    assert (pinned, others) == ([0], [4, 5, 6, 7, 8])
    assert pool.plan_moves(64) == {}
    assert (pool.available, pool.unpinned_capacity, pool.capacity) == (3, 8, 12)
    pool.unpin([0])
    pool.check_integrity([[4, 5, 6, 7, 8]])
    assert (arena.num_free, arena.num_pinned) == (1, 0)
