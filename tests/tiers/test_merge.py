"""Merged generators: everything arrives, the first error ends it, closing closes all."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tiers.deltas import merge


async def count(name: int, upto: int, closed: list[int], error: Exception | None = None) -> AsyncGenerator[int, None]:
    try:
        for i in range(upto):
            yield name * 100 + i
            await asyncio.sleep(0)
        if error is not None:
            raise error
        if upto > 50:
            await asyncio.Event().wait()
    finally:
        closed.append(name)


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_item_arrives_in_the_order_of_its_stream(streams: int) -> None:
    closed: list[int] = []
    items = [item async for item in merge([count(k, 20, closed) for k in range(streams)])]
    for k in range(streams):
        assert [i for i in items if i // 100 == k] == [k * 100 + i for i in range(20)]
    assert sorted(closed) == list(range(streams))


@pytest.mark.parametrize("streams", [1, 3])
async def test_the_first_error_ends_all(streams: int) -> None:
    closed: list[int] = []
    generators = [count(0, 3, closed, ValueError("broken")), *(count(k, 99, closed) for k in range(1, streams))]
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge(generators):
            pass
    assert sorted(closed) == list(range(streams))


@pytest.mark.parametrize("streams", [1, 3])
async def test_closing_early_closes_all_before_it_returns(streams: int) -> None:
    closed: list[int] = []
    async with aclosing(merge([count(k, 99, closed) for k in range(streams)])) as merged:
        for _ in range(streams):
            await anext(merged)
    assert sorted(closed) == list(range(streams))
