"""Blocks come back from host memory as they left, whatever slots they were in (SPEC TI-14)."""

import pytest
import torch

from inference_core.attention import BlockAddresses
from inference_core.execution import block_memory
from inference_core.execution.block_memory import HostBlocks

ADDRESSES = BlockAddresses(block_size=16, block_bytes=96, slab_bytes=500)  # five to a slab, and a rest


def arena() -> torch.Tensor:
    return torch.randint(0, 256, (4 * 500,), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)


@pytest.mark.parametrize("chunk_bytes", [96, 300, 1 << 20])
def test_blocks_come_back_bit_by_bit_and_nothing_else_changes(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_memory, "_CHUNK_BYTES", chunk_bytes)
    memory, before = arena(), arena()
    host = HostBlocks(memory, ADDRESSES.offsets, 96)
    away = [(0, 7), (1, 8), (4, 9), (5, 0), (17, 40)]
    host.offload(away)
    for offset in ADDRESSES.offsets([block for block, _ in away]).tolist():
        memory[offset : offset + 96] = 0
    assert not torch.equal(memory, before)
    host.restore([(slot, block) for block, slot in away])
    assert torch.equal(memory, before)


def test_slots_that_were_never_written_cannot_be_restored() -> None:
    host = HostBlocks(arena(), ADDRESSES.offsets, 96)
    with pytest.raises(KeyError):
        host.restore([(3, 0)])
