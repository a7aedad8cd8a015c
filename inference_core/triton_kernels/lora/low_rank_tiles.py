"""Tile sizes for a step's rows with adapters; each tile has rows of one adapter. No torch: arithmetic only."""

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
