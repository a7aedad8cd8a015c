"""The benchmark of the chat queue pairs chats, and says what the second target adds to the first."""

import pytest

from benchmarks.gateway.queue import bench_queue
from benchmarks.gateway.target import Target, TargetError
from benchmarks.gateway.upstream import running_upstream


async def test_so_many_pairs_of_whole_and_streamed_chats_are_compared() -> None:
    async with running_upstream() as url:
        here = Target("here", url.removesuffix("/v1"), "mock")
        rows = [row async for row in bench_queue(here, here, chats=40, at_once=2, most_seconds=20.0)]
    assert [(row.stream, row.chats, row.at_once) for row in rows] == [(False, 40, 2), (True, 40, 2)]
    assert all(0 < row.direct_p50_ms <= row.direct_p99_ms and row.added_p50_ms <= row.added_p99_ms for row in rows)


async def test_an_answer_without_a_choice_ends_it() -> None:
    async with running_upstream() as url:
        here = Target("here", url.removesuffix("/v1"), "mock")
        with pytest.raises(TargetError, match="lists models"):
            async for _ in bench_queue(
                here,
                Target("lists models", here.url, "mock", path="/v1/messages"),
                chats=10,
                at_once=1,
                most_seconds=5.0,
            ):
                pass
