"""How rows of a step that go through adapters are cut into tiles, each of one adapter. No torch: arithmetic only."""

NO_SLOT = -1
# Rows of a program: tiles of matrix instructions for decodes, larger ones where rows use the factors many times.
SMALL_TILE, LARGE_TILE = 16, 64
_MANY_TOKENS = 512


def tile_rows_for(tokens: int) -> int:
    """Rows of a tile in a step of so many tokens."""
    return LARGE_TILE if tokens >= _MANY_TOKENS else SMALL_TILE


def most_tiles(tokens: int, slots: int) -> int:
    """How many tiles the rows of a step of `tokens` tokens take at most, whatever slots they go through."""
    return tokens // tile_rows_for(tokens) + min(slots, tokens)


def most_tiles_up_to(tokens: int, slots: int) -> int:
    """How many tiles a step of up to `tokens` tokens takes at most."""
    return max(most_tiles(count, slots) for count in {tokens, min(tokens, _MANY_TOKENS - 1)})
