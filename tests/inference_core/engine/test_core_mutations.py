"""Mutation tests: the stateful properties detect engines that are broken on purpose."""

from collections.abc import Callable

import pytest
from core_driver import BLOCK, CoreDriver, greedy
from core_machine import (
    CoreMachine,
    DecodingAheadMachine,
    OneModelMachine,
    OverlappingMachine,
    SpeculatingMachine,
    ThreeModelMachine,
)
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from inference_core.engine import block_tables, scheduler, sequence, sequence_kv, step_executor
from inference_core.engine.commit import ScheduledEntry
from inference_core.engine.draft_model import DraftModel
from inference_core.errors import IntegrityError
from inference_core.kv_cache import prefix_hash
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.slab_arena import SlabArena
from inference_core.step_plan import StepPlan

# Neither shrinking nor remembering failures: they are expected here.
HUNT = settings(
    # The first failure ends the search. What is drawn depends on the modules that other tests have loaded.
    max_examples=1500,
    stateful_step_count=35,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
)
Break = Callable[[pytest.MonkeyPatch], None]


def skip_increment(patch: pytest.MonkeyPatch) -> None:
    """A prefix hit on a referenced block adds no reference."""
    acquire = BlockPool.acquire
    patch.setattr(BlockPool, "acquire", lambda pool, blocks: acquire(pool, [b for b in blocks if b in pool._evictable]))


def decrement_twice(patch: pytest.MonkeyPatch) -> None:
    """The first block of a shared table loses two references at once."""
    release = BlockPool.release

    def broken(pool: BlockPool, blocks: list[int]) -> None:
        release(pool, blocks)
        if blocks and blocks[0] in pool._references:
            release(pool, blocks[:1])

    patch.setattr(BlockPool, "release", broken)


def forget_release(patch: pytest.MonkeyPatch) -> None:
    """The last block of a table is never released."""
    release = BlockPool.release
    patch.setattr(BlockPool, "release", lambda pool, blocks: release(pool, blocks[:-1]))


def ignore_parent(patch: pytest.MonkeyPatch) -> None:
    """A digest depends on the block's own tokens alone."""

    def broken(_: bytes, tokens: list[int], first: int, count: int, size: int) -> list[bytes]:
        root = prefix_hash.root_digest("")
        return [prefix_hash.chain_digests(root, tokens, i, 1, size)[0] for i in range(first, first + count)]

    patch.setattr(sequence_kv, "chain_digests", broken)


def ignore_salt(patch: pytest.MonkeyPatch) -> None:
    """All tenants share one prefix cache."""
    patch.setattr(sequence_kv, "root_digest", lambda _, adapter, fast: prefix_hash.root_digest("", adapter, fast=fast))


def ignore_adapter(patch: pytest.MonkeyPatch) -> None:
    """Blocks are shared between requests with and without an adapter."""
    patch.setattr(sequence_kv, "root_digest", lambda salt, _, fast: prefix_hash.root_digest(salt, fast=fast))


def ignore_tokens(patch: pytest.MonkeyPatch) -> None:
    """A digest depends on the block's position in the chain alone."""

    def broken(parent: bytes, _: list[int], first: int, count: int, size: int) -> list[bytes]:
        return prefix_hash.chain_digests(parent, [0] * count * size, 0, count, size)

    patch.setattr(sequence_kv, "chain_digests", broken)


def give_slab_twice(patch: pytest.MonkeyPatch) -> None:
    """A slab is allocated but stays free."""
    take = SlabArena.take

    def broken(arena: SlabArena, *args: object, **kwargs: object) -> int | None:
        slab = take(arena, *args, **kwargs)
        if slab is not None:
            arena._free.insert(0, slab)
        return slab

    patch.setattr(SlabArena, "take", broken)


def keep_cache_of_evicted(patch: pytest.MonkeyPatch) -> None:
    """An evicted block stays in the index of the prefix cache."""
    reuse = BlockPool._reuse_coldest

    def broken(pool: BlockPool, most: int) -> list[int]:
        digest_of = dict(pool._digest_of)
        blocks = reuse(pool, most)
        pool._block_of.update((digest_of[block], block) for block in blocks)
        return blocks

    patch.setattr(BlockPool, "_reuse_coldest", broken)


def overspend(patch: pytest.MonkeyPatch) -> None:
    """Assigned tokens are not charged to the budget."""

    def broken(draft: scheduler.StepBudget, sequence: sequence.Sequence, tokens: int) -> None:
        left = draft.left
        hand_out(draft, sequence, tokens)
        draft.left = left

    hand_out = scheduler.StepBudget.hand_out
    patch.setattr(scheduler.StepBudget, "hand_out", broken)


def cache_last_token(patch: pytest.MonkeyPatch) -> None:
    """A prompt may come from the cache entirely, last token included."""

    def broken(self: sequence.Sequence, block_size: int) -> list[bytes]:
        count = len(self.token_ids) // block_size
        self.kv.extend_digests(count, block_size)
        return self.kv.digests[:count]

    patch.setattr(sequence.Sequence, "shareable_digests", broken)


def keep_what_was_launched_after_a_fault(patch: pytest.MonkeyPatch) -> None:
    """A step launched after a failed one is forgotten, and its sequences continue as if it were done."""
    patch.setattr(step_executor.StepExecutor, "cancel", lambda self: self._in_flight.clear() or [])


def keep_pending_tokens(patch: pytest.MonkeyPatch) -> None:
    """Pending tokens that no step will bring are kept."""
    patch.setattr(sequence.Sequence, "forget_pending", lambda self: None)


def keep_the_blocks_of_drafts(patch: pytest.MonkeyPatch) -> None:
    """Blocks of rejected drafts are not released."""
    patch.setattr(block_tables.BlockTables, "take_back", lambda self, kv: None)


def count_drafts_as_computed(patch: pytest.MonkeyPatch) -> None:
    """Drafts count as computed before they are verified."""

    def broken(plan: StepPlan, running: dict[str, sequence.Sequence]) -> list[ScheduledEntry]:
        entries = entries_of(plan, running)
        for entry, share in zip(entries, plan.sequences, strict=True):
            entry.num_computed += share.num_drafts
        return entries

    entries_of = step_executor.entries_of
    patch.setattr(step_executor, "entries_of", broken)


def draft_over_budget(patch: pytest.MonkeyPatch) -> None:
    """Drafted tokens are not charged to the budget."""
    add_drafts = scheduler.Scheduler.add_drafts

    def broken(self: scheduler.Scheduler, *args: object) -> None:
        left = self._budget.left
        add_drafts(self, *args)
        self._budget.left = left

    patch.setattr(scheduler.Scheduler, "add_drafts", broken)


def lend_without_return(patch: pytest.MonkeyPatch) -> None:
    """A draft model keeps the blocks of sequences that stop running."""
    patch.setattr(DraftModel, "forget", lambda self, sequence: None)


@pytest.mark.properties
@pytest.mark.parametrize(
    ("break_it", "machine"),
    [
        (skip_increment, OneModelMachine),
        (decrement_twice, OneModelMachine),
        (decrement_twice, ThreeModelMachine),
        (forget_release, OneModelMachine),
        (ignore_parent, OneModelMachine),
        (ignore_parent, ThreeModelMachine),
        (ignore_salt, OneModelMachine),
        (ignore_adapter, OneModelMachine),
        (ignore_tokens, OneModelMachine),
        (give_slab_twice, ThreeModelMachine),
        (keep_cache_of_evicted, OneModelMachine),
        (overspend, OneModelMachine),
        (cache_last_token, OneModelMachine),
        (keep_pending_tokens, OverlappingMachine),
        (keep_the_blocks_of_drafts, SpeculatingMachine),
        (keep_the_blocks_of_drafts, DecodingAheadMachine),
        (count_drafts_as_computed, SpeculatingMachine),
        (draft_over_budget, SpeculatingMachine),
        (lend_without_return, SpeculatingMachine),
    ],
)
def test_a_broken_engine_fails_the_stateful_property(
    break_it: Break, machine: type[CoreMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference counts, hash chain and budget are each guarded (SPEC KV-01, KV-05)."""
    break_it(monkeypatch)
    with pytest.raises((IntegrityError, AssertionError, KeyError, IndexError, OverflowError, ValueError)):
        run_state_machine_as_test(machine, settings=HUNT)


def test_forgetting_a_step_after_a_fault_would_end_the_sequences_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_what_was_launched_after_a_fault(monkeypatch)
    driver = CoreDriver(overlap=True)
    driver.add([1] * 5, sampling=greedy(10))
    driver.step(3)
    newcomer = driver.add([2] * 7, sampling=greedy(10))
    driver.runners["m"].fault = RuntimeError("lost")
    driver.drain()
    assert driver.finished[newcomer, 0].finish_reason == "error"


def load_without_checks() -> None:
    driver = CoreDriver(slabs=1, check=False)
    for i in range(60):
        driver.add([1] * 2 * BLOCK + [i % 7] * BLOCK)
        driver.step(3)
    driver.drain()


@pytest.mark.parametrize("break_it", [skip_increment, decrement_twice, keep_cache_of_evicted])
def test_broken_reference_counts_show_in_the_tokens_alone(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without integrity checks, a block used twice changes some answer (SPEC KV-01)."""
    load_without_checks()
    break_it(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        load_without_checks()
