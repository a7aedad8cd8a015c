"""How the attention kernel cuts its work: rows and tokens of a tile, warps, pipeline stages, and splits of a context.

The table follows from registers and shared memory, not from a measurement: a program keeps rows x head_dim float32
sums in registers, and `stages` tiles of keys and of values in shared memory (99 KiB on sm_89, 163 KiB on sm_80,
227 KiB on sm_90 and sm_100). Every launcher takes another choice in its place.
"""

from dataclasses import dataclass

_SHARED_BYTES = 96 * 1024  # what every supported device has, but for a little that the compiler takes
_MIN_TOKENS_PER_SPLIT = 256  # below it, merging costs more than the second reader saves
_PROGRAMS_PER_PROCESSOR = 2
_MAX_SPLITS = 32


@dataclass(slots=True, frozen=True)
class AttentionTile:
    """`rows`: query rows of one program, packed from `rows // group` queries times the group's heads.

    `tokens`: of the cache, read at once. Both are powers of two of at least 16.
    """

    rows: int
    tokens: int
    warps: int
    stages: int


def padded(head_dim: int) -> int:
    """The power of two that holds `head_dim`."""
    return 1 << (head_dim - 1).bit_length()


def choose_tile(*, max_query_len: int, group: int, head_dim: int, cache_itemsize: int, itemsize: int) -> AttentionTile:
    """For queries of at most `max_query_len` tokens, `group` query heads to a KV head.

    `cache_itemsize` and `itemsize`: bytes of a cached number and of an activation.
    """
    width = padded(head_dim)
    wanted, least = padded(max(16, min(max_query_len * group, 128))), padded(group)
    if itemsize == 4:  # three products in TF32 stand for one in float32: their operands take the registers
        rows, most = max(least, min(wanted, 32)), 32
    else:
        # FP8 takes registers twice: as it is cached, and as it is multiplied.
        fp8 = cache_itemsize == 1
        rows = max(least, min(wanted, 64) if width > 128 or fp8 else wanted)
        most = min(64, 64 * 128 // width) if fp8 or rows > 16 else 128
    # Of three stages one is for the block table, which keys and values wait for; a program that decodes waits for them
    # most of the time, and leaves room for others beside it.
    return AttentionTile(
        rows=rows,
        tokens=_tokens(most, width * cache_itemsize),
        warps=8 if rows >= 128 or rows * width > 64 * 128 else 4,
        stages=3 if rows == 16 and cache_itemsize > 1 else 2,
    )


def _tokens(most: int, row_bytes: int) -> int:
    """The power of two, 16 to `most`, of which shared memory holds two stages of keys and of values."""
    return max(16, min(most, 1 << (_SHARED_BYTES // (2 * 2 * row_bytes)).bit_length() - 1))


def choose_splits(*, blocks: int, kv_heads: int, processors: int) -> int:
    """How many programs share one context, so that every processor has work: a power of two, 1 to 32.

    `blocks`: query blocks of the launch; each of them and every KV head is a program of its own. Contexts shorter than
    their share of splits are cut into fewer (see `min_tiles`), on the device, where lengths are known.
    """
    wanted = _PROGRAMS_PER_PROCESSOR * processors // max(1, blocks * kv_heads)
    return 1 << max(0, min(wanted, _MAX_SPLITS).bit_length() - 1)


def min_tiles(tile: AttentionTile) -> int:
    """Tiles that one split takes at least."""
    return max(1, _MIN_TOKENS_PER_SPLIT // tile.tokens)
