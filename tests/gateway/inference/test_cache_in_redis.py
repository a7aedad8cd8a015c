"""Two gateways over one Redis: what one has answered the other one knows, and neither needs Redis to answer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from gateway.base.settings import Settings
from tests.support.app import RunningGateway, running_gateway
from tests.support.database import RedisServer

BODY = {"model": "tier-1", "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}


@pytest_asyncio.fixture
async def pair(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    one, other = (
        Settings(data_dir=str(tmp_path / name), monitor=False, drain_seconds=5, redis_url=redis_server.url)
        for name in ("one", "other")
    )
    async with running_gateway(one) as first, running_gateway(other) as second:
        yield first, second


async def asked(gateway: RunningGateway, body: dict[str, Any] = BODY) -> tuple[int, str]:
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    await gateway.serving.service.idle()
    return answer.status_code, answer.headers["x-aio-cache"]


async def test_what_one_has_answered_the_other_gives_again_while_redis_is_there(
    pair: tuple[RunningGateway, RunningGateway], redis_server: RedisServer
) -> None:
    one, other = pair
    assert await asked(one) == (200, "miss")
    await until_kept(one)
    assert await asked(other) == (200, "hit")
    assert not other.tier(1).requests

    redis_server.kill()
    assert [await asked(one), await asked(other)] == [(200, "miss"), (200, "miss")]
    metrics = (await other.http.get("/metrics")).text
    assert "aio_cache_failures_total 0.0" not in metrics


async def test_with_redaction_answers_stay_in_memory_and_redis_gets_none(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    (tmp_path / "patterns").write_text("4711\n")
    settings = Settings(
        data_dir=str(tmp_path / "data"), monitor=False, drain_seconds=5, redis_url=redis_server.url,
        redaction=str(tmp_path / "patterns"),
    )  # fmt: skip
    async with running_gateway(settings) as gateway:
        gateway.tier(1).words = ("Your number is 4711.",)
        assert await asked(gateway) == (200, "miss")
        await until_kept(gateway)
        assert await asked(gateway) == (200, "hit")
        assert gateway.operations.readiness.redis is not None
        kept = await gateway.operations.readiness.redis.ask(lambda redis: redis.keys("aio:answer:*"))
    assert kept == []


async def until_kept(gateway: RunningGateway) -> None:
    """The answer is put away after its caller has it."""
    generations = gateway.operations.cache._shared
    for shared in list(generations.values()):
        await shared.stopped()
