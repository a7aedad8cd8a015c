"""Blocks copied inside the arena, and swapped between arenas, arrive whole and alone (SPEC KV-04, KV-09)."""

import pytest
import torch

from inference_core.execution.block_memory import swap_blocks
from inference_core.triton_kernels.cache_writes import copy_blocks
from inference_core.triton_kernels.reference import reference_copy_blocks


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize("block_bytes", [16, 4096, 50_000])
def test_copies_equal_the_reference_and_padding_does_nothing(block_bytes: int, device: torch.device) -> None:
    arena = noise(8 * block_bytes + 3)
    pairs = torch.tensor([[0, 5], [3, 1], [-1, -1], [2, 7], [-1, -1]]) * block_bytes
    got = arena.to(device)
    copy_blocks(got, pairs.to(device), block_bytes)
    reference_copy_blocks(arena, pairs, block_bytes)
    assert torch.equal(got.cpu(), arena)


def test_copies_beyond_four_gibibytes_arrive(device: torch.device) -> None:
    """Untouched pages take no memory on the CPU."""
    block_bytes, far = 4096, 5 << 30
    arena = torch.empty(far + 2 * block_bytes, dtype=torch.uint8, device=device)
    block = noise(block_bytes).to(device)
    arena[far : far + block_bytes] = block
    copy_blocks(arena, torch.tensor([[far, 0], [far, far + block_bytes]], device=device), block_bytes)
    assert torch.equal(arena[:block_bytes], block)
    assert torch.equal(arena[-block_bytes:], block)


def test_swapped_blocks_come_back_as_they_were(device: torch.device) -> None:
    block_bytes = 256
    arena = noise(8 * block_bytes).to(device)
    host = torch.zeros(4 * block_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    before = arena.clone()
    out = [(6, 0), (1, 2), (2, 3), (4, 1)]
    swap_blocks(arena, host, [(a * block_bytes, b * block_bytes) for a, b in out], block_bytes)
    arena[:] = 0
    swap_blocks(host, arena, [(b * block_bytes, a * block_bytes) for a, b in out], block_bytes)
    for block in range(8):
        part = slice(block * block_bytes, (block + 1) * block_bytes)
        if block in (6, 1, 2, 4):
            assert torch.equal(arena[part], before[part])
        else:
            assert not arena[part].any()
