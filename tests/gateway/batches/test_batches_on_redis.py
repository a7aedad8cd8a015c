"""Batches with their queue in Redis: answered, cancelled, and unharmed when Redis dies and returns."""

import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.batches.redis_queue import RedisQueue
from tests.gateway.batches.batching import made, outcome, request_line, until_answered
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.database import RedisServer


@pytest_asyncio.fixture
async def working(redis_server: RedisServer, app: StartApp) -> RunningGateway:
    gateway = await app(redis_url=redis_server.url)
    assert isinstance(gateway.jobs.queue, RedisQueue)
    return gateway


async def counted(gateway: RunningGateway) -> dict[str, float]:
    families = text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    return {
        sample.labels["outcome"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "aio_batch_lines_total"
    }


async def test_every_line_is_answered_once_and_redis_keeps_nothing(
    working: RunningGateway, redis_server: RedisServer
) -> None:
    names = [f"r{n}" for n in range(60)]
    batch, output, errors = await outcome(
        working.openai, (await made(working.openai, [request_line(name) for name in names])).id
    )
    assert (batch.status, list(output), errors) == ("completed", names, {})
    assert len(working.tier(1).requests) == 60
    assert await counted(working) == {"done": 60}
    assert working.operations.readiness.redis is not None
    assert await working.operations.readiness.redis.redis.keys(f"aio:batch:*{batch.id}*") == []


async def test_cancelling_ends_it(working: RunningGateway) -> None:
    tier = working.tier(2)
    tier.hold_at = 1
    batch = await made(working.openai, [request_line(f"r{n}", model="tier-2") for n in range(9)])
    await tier.holding.wait()
    await working.openai.batches.cancel(batch.id)
    batch, output, errors = await outcome(working.openai, batch.id)
    assert (batch.status, output, len(errors)) == ("cancelled", {}, 9)
    assert working.serving.service.in_flight == 0


async def test_redis_killed_and_back_in_mid_batch_costs_no_line(
    working: RunningGateway, redis_server: RedisServer
) -> None:
    tier = working.tier(2)
    tier.hold_at = 1
    names = [f"quick{n}" for n in range(10)] + [f"slow{n}" for n in range(10)]
    lines = [request_line(name, model="tier-1" if "quick" in name else "tier-2") for name in names]
    batch = await made(working.openai, lines)
    await until_answered(working.openai, batch.id, 10)
    await eventually(lambda: len(tier.requests) == 4)

    redis_server.kill()
    tier.go.set()
    # Lines that were running are stored all the same.
    await until_answered(working.openai, batch.id, 14)
    assert working.serving.service.in_flight == 0
    redis_server.start()

    batch, output, errors = await outcome(working.openai, batch.id)
    assert (batch.status, sorted(output), errors) == ("completed", sorted(names), {})
