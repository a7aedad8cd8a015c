"""The table of tiles gives what the kernel and the smallest device can take, and splits fill idle processors."""

import itertools

import pytest

from inference_core.triton_kernels.tiles import choose_splits, choose_tile, min_tiles, padded

ITEM_SIZES = list(itertools.product([1, 2, 4], [2, 4]))


def power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@pytest.mark.parametrize(("cache_itemsize", "itemsize"), ITEM_SIZES)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 128, 256])
def test_every_tile_is_one_that_the_kernel_takes_and_that_fits(
    head_dim: int, cache_itemsize: int, itemsize: int
) -> None:
    for max_query_len, group in itertools.product([1, 5, 64, 4096], [1, 3, 8, 32]):
        takes_and_fits(max_query_len, group, head_dim, cache_itemsize, itemsize)


def takes_and_fits(max_query_len: int, group: int, head_dim: int, cache_itemsize: int, itemsize: int) -> None:
    tile = choose_tile(
        max_query_len=max_query_len,
        group=group,
        head_dim=head_dim,
        cache_itemsize=cache_itemsize,
        itemsize=itemsize,
    )
    assert all(map(power_of_two, (tile.rows, tile.tokens, tile.warps)))
    assert tile.rows >= max(16, group)
    assert tile.tokens >= 16
    assert min_tiles(tile) * tile.tokens >= 256
    # Keys and values of every stage within what sm_89 has.
    assert tile.stages * 2 * tile.tokens * padded(head_dim) * cache_itemsize <= 99 << 10


@pytest.mark.parametrize(("blocks", "splits"), [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (17, 1), (64, 1), (512, 1)])
def test_few_contexts_are_shared_until_every_processor_has_two_programs(blocks: int, splits: int) -> None:
    assert choose_splits(blocks=blocks, kv_heads=8, processors=132) == splits
