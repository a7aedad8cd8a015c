"""The benchmark of a gateway's memory: a look before, one after every so many answers, and no request that is lost."""

import os
from contextlib import AsyncExitStack

import pytest

from benchmarks.gateway.memory import resident_while_proxying
from benchmarks.gateway.proxy import Target
from benchmarks.gateway.upstream import running_upstream
from gateway.processes.server_process import ServerProcess


async def test_it_looks_after_every_so_many_answers() -> None:
    async with running_upstream() as url:
        root = url.removesuffix("/v1")
        here = ServerProcess(root, os.getpid(), 0.0)
        looks = resident_while_proxying(here, Target("here", root, "mock"), requests=30, every=10, concurrency=3)
        found = [one async for one in looks]
    assert [one.requests for one in found] == [0, 10, 20, 30]
    assert all(1e6 < one.bytes < 1e11 for one in found)


async def test_a_server_that_goes_away_ends_it() -> None:
    async with AsyncExitStack() as stack:
        root = (await stack.enter_async_context(running_upstream())).removesuffix("/v1")
        here, target = ServerProcess(root, os.getpid(), 0.0), Target("here", root, "mock")
        looks = resident_while_proxying(here, target, requests=10, every=10, concurrency=1)
        assert (await anext(looks)).requests == 0
        await stack.aclose()
        with pytest.raises(OSError, match="Connect"):
            await anext(looks)
