"""The benchmark of idle conversations: each had a chat answered, all stay open, and a closed one is an error."""

import os

import pytest

from benchmarks.gateway.idle_connections import idle_after_a_chat
from benchmarks.gateway.proxy import Target
from gateway.base.settings import Settings
from gateway.processes.server_process import ServerProcess
from tests.gateway.running_gateway import running_gateway
from tiers.errors import TierError


async def test_it_looks_before_and_after_every_so_many_connections(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        here = ServerProcess(gateway.url, os.getpid(), 0.0)
        looks = idle_after_a_chat(here, Target("here", gateway.url, "tier-1"), most=25, every=10, seconds=0.0)
        found = [one async for one in looks]
        answered = len(gateway.tier(1).requests)
    assert [one.connections for one in found] == [0, 10, 20, 25]
    assert all(1e6 < one.bytes < 1e11 for one in found)
    assert all(one.cpu_seconds >= 0 for one in found)
    assert answered == 25


async def test_a_chat_that_fails_ends_it(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        here = ServerProcess(gateway.url, os.getpid(), 0.0)
        gateway.tier(1).fail_at, gateway.tier(1).error = 1, TierError("no answer")
        looks = idle_after_a_chat(here, Target("here", gateway.url, "tier-1"), most=2, every=2, seconds=0.0)
        assert (await anext(looks)).connections == 0
        with pytest.raises(RuntimeError, match="was not answered"):
            await anext(looks)
