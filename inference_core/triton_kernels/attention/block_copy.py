"""Copies of whole KV blocks inside the arena, for all pairs in one launch (SPEC KV-04)."""

import torch
import triton
import triton.language as tl

_WORDS = 4096  # of one program


@triton.jit
def copy_blocks_kernel(words, pairs, count, WORDS: tl.constexpr):
    """Programs: pairs x pieces of WORDS words. A pair that begins with a negative offset is padding."""
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(pairs + 2 * pair)
    target = tl.load(pairs + 2 * pair + 1)
    if source < 0:
        return
    piece = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = piece < count
    # Blocks begin at whole 16 bytes; in this form the compiler sees it, and copies four words at a time.
    from_word = source // 16 * 4
    to_word = target // 16 * 4
    tl.store(words + to_word + piece, tl.load(words + from_word + piece, mask=inside), mask=inside)


def copy_blocks(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    """Copy `block_bytes` from the first to the second byte offset of each of `pairs`, int64 [N, 2] on the same device.

    Offsets and `block_bytes` are multiples of 16; no block is both read and written. A negative first offset marks a
    pair to be left alone, so that the number of pairs may be padded.
    """
    if not pairs.shape[0]:
        return
    count = block_bytes // 4
    words = arena[: arena.numel() // 4 * 4].view(torch.int32)
    copy_blocks_kernel[(pairs.shape[0], triton.cdiv(count, _WORDS))](
        words, pairs, count, WORDS=_WORDS, num_warps=4, num_stages=1
    )
