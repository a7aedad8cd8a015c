"""Tile sizes of the attention and low-rank kernels. No torch: arithmetic only.

Attention: rows and tokens of a tile, warps, pipeline stages, and splits of a context. The table follows from registers
and shared memory, and from measurements on an H200: a program keeps rows x head_dim float32 sums in registers, and
`stages` tiles of keys and of values in shared memory (99 KiB on sm_89, 163 KiB on sm_80, 227 KiB on sm_90 and
sm_100). Every launcher accepts an override. Low-rank: each tile has rows of one adapter.
"""

from dataclasses import dataclass

_SHARED_BYTES = 96 * 1024  # available on every supported device, less a reserve for the compiler
_MIN_TOKENS_PER_SPLIT = 256  # below this, merging costs more than a second program saves
_PROGRAMS_PER_PROCESSOR = 2
_MAX_SPLITS = 32
# Long prompts are attended in lengths of multiples of this, see `prompt_attention`.
PROMPT_GRAIN = 1024
PROMPT_FIELDS = 4
"""Numbers of a long prompt: the index of its sequence, its first row, its queries and its context, including these."""


@dataclass(slots=True, frozen=True)
class AttentionTile:
    """Sizes of one program, powers of two of at least 16."""

    rows: int
    """Query rows of one program, packed from `rows // group` queries times the group's heads."""
    tokens: int
    """Tokens of the cache, read at once."""
    warps: int
    stages: int


def padded(head_dim: int) -> int:
    """`head_dim` rounded up to a power of two."""
    return 1 << (head_dim - 1).bit_length()


def choose_tile(*, max_query_len: int, group: int, head_dim: int, cache_itemsize: int, itemsize: int) -> AttentionTile:
    """Choose a tile for queries of at most `max_query_len` tokens with `group` query heads per KV head.

    `cache_itemsize` and `itemsize`: bytes of a cached number and of an activation.
    """
    width = padded(head_dim)
    wanted, least = padded(max(16, min(max_query_len * group, 128))), padded(group)
    if itemsize == 4:  # a float32 product takes three TF32 products, whose operands need registers
        rows, most = max(least, min(wanted, 32)), 32
    else:
        rows = max(least, min(wanted, 64) if width > 128 or cache_itemsize == 1 else wanted)
        most = min(64, 64 * 128 // width) if rows > 16 else 128
    # Numbers of four warps' queries: cached numbers of 8 bits, and their scales, take registers of their own.
    most_of_four = (32 if cache_itemsize == 1 else 64) * 128
    # One of three stages is for the block table, which keys and values depend on. A decoding program mostly waits for
    # memory, so it leaves registers for other programs on the same processor.
    return AttentionTile(
        rows=rows,
        tokens=_tokens(most, width * cache_itemsize),
        warps=8 if rows >= 128 or rows * width > most_of_four else 4,
        stages=3 if rows == 16 and cache_itemsize > 1 else 2,
    )


def _tokens(most: int, row_bytes: int) -> int:
    """The largest power of two, 16 to `most`, for which two stages of keys and values fit in shared memory."""
    return max(16, min(most, 1 << (_SHARED_BYTES // (2 * 2 * row_bytes)).bit_length() - 1))


def choose_splits(*, blocks: int, kv_heads: int, processors: int) -> int:
    """How many programs split one context, so that every processor has work: a power of two, 1 to 32.

    `blocks`: query blocks of the launch; each pair of a query block and a KV head is a program. Short contexts are cut
    into fewer splits (see `min_tiles`) on the device, where lengths are known.
    """
    wanted = _PROGRAMS_PER_PROCESSOR * processors // max(1, blocks * kv_heads)
    return 1 << max(0, min(wanted, _MAX_SPLITS).bit_length() - 1)


def min_tiles(tile: AttentionTile) -> int:
    """The minimum number of tiles per split."""
    return max(1, _MIN_TOKENS_PER_SPLIT // tile.tokens)


NO_SLOT = -1
# Rows per program: a matrix instruction's tile for decodes, a larger one if many rows reuse the factors.
SMALL_TILE, LARGE_TILE = 16, 64
_MANY_TOKENS = 512


def tile_rows_for(tokens: int) -> int:
    """Rows per tile in a step of `tokens` tokens."""
    return LARGE_TILE if tokens >= _MANY_TOKENS else SMALL_TILE


def most_tiles(tokens: int, slots: int) -> int:
    """The most tiles that a step of `tokens` tokens can take, for any assignment of rows to slots."""
    return tokens // tile_rows_for(tokens) + min(slots, tokens)


def most_tiles_up_to(tokens: int, slots: int) -> int:
    """The most tiles that a step of up to `tokens` tokens can take."""
    return max(most_tiles(count, slots) for count in {tokens, min(tokens, _MANY_TOKENS - 1)})
