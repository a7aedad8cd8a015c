"""The benchmark of viewers has real ones, over real requests, and says so when they are turned away."""

import os

import httpx
import pytest

from benchmarks.gateway.proxy import Target
from benchmarks.gateway.viewers import bench_viewers, watching
from gateway.processes.server_process import ServerProcess
from tests.gateway.administrator import ADMIN_KEY
from tests.gateway.running_gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.processes
async def test_pairs_of_rounds_are_asked_and_viewers_are_sent_what_moves(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operations.dashboard.pages.overview.EVENT_SECONDS", 0.01)
    here = ServerProcess(gateway.url, os.getpid(), 0.0)
    cost = await bench_viewers(
        Target("here", gateway.url, "tier-1"), here,
        secret=ADMIN_KEY, viewers=3, concurrency=2, pairs=2, seconds=0.3, progress=lambda stage, share: None,
    )  # fmt: skip
    assert cost.requests > 0
    assert cost.errors == 0
    drawn = (await gateway.operations.live.overview(), gateway.operations.live.drawn)
    assert drawn[1] is not None, "no event was drawn"
    assert cost.bytes_seen > len(drawn[1][1])
    for ratio in (cost.throughput, cost.cpu):
        assert ratio.low <= ratio.median <= ratio.high


async def test_viewers_who_are_not_signed_in_are_no_viewers(gateway: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        with pytest.raises(ExceptionGroup):
            async with watching(http, 1):
                pass
