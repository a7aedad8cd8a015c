"""The benchmark of proxying asks what it says, and counts what was not answered."""

import pytest

from gateway.bench.proxy import Target, bench_proxy
from gateway.bench.upstream import running_upstream


async def test_every_load_has_a_row_for_every_target_and_failures_are_counted() -> None:
    async with running_upstream() as url:
        here = Target("here", url.removesuffix("/v1"), "mock")
        lost = Target("lost", f"{here.url}", "mock", key="k", repeats=True)
        rows = [row async for row in bench_proxy([here, lost], concurrency=[1, 4], rate=100.0, seconds=0.05, rounds=1)]
    assert [(row.target, row.stream, row.loop, row.offered) for row in rows] == [
        (name, stream, loop, offered)
        for stream, loop, offered in (
            (False, "closed", 1), (False, "closed", 4), (True, "closed", 1), (True, "closed", 4),
            (False, "poisson", 100),
        )
        for name in ("here", "lost")
    ]  # fmt: skip
    assert all(row.ok > 0 and row.errors == 0 and 0 < row.p50_ms <= row.p99_ms for row in rows)


async def test_a_target_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="Connect"):
        async for _ in bench_proxy(
            [Target("gone", "http://127.0.0.1:1", "mock")], concurrency=[1], rate=0, seconds=0.01, rounds=1
        ):
            pass
