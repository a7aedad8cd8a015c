"""Batches over PostgreSQL: runs every statement of their life on the other database."""

import pytest
from openai import NotFoundError

from tests.gateway.batches.batching import ended, made, outcome, request_line
from tests.support.app import StartApp


async def test_batches_are_answered_refused_and_cancelled(postgres_url: str, app: StartApp) -> None:
    gateway = await app(database_url=postgres_url)
    client = gateway.openai
    names = [f"r{n}" for n in range(30)]
    lines = [request_line(name) for name in names] + [request_line("wrong", model="none")]
    batch, output, errors = await outcome(client, (await made(client, lines)).id)
    assert (batch.status, list(output), list(errors)) == ("completed", names, ["wrong"])

    failed = await ended(client, (await made(client, [request_line("a"), request_line("a")])).id)
    assert failed.errors is not None
    assert [error.code for error in failed.errors.data or ()] == ["duplicate_custom_id"]

    tier = gateway.tier(2)
    tier.hold_at = 1
    batch = await made(client, [request_line(f"r{n}", model="tier-2") for n in range(5)])
    await tier.holding.wait()
    await client.batches.cancel(batch.id)
    batch, output, errors = await outcome(client, batch.id)
    assert (batch.status, output, len(errors)) == ("cancelled", {}, 5)
    assert "aio_batch_lines_waiting 0.0" in (await gateway.http.get("/metrics")).text
    rows = (await gateway.http.get("/admin/api/batches", params={"status": "failed"})).json()["rows"]
    assert [row["batch_id"] for row in rows] == [failed.id]

    content = b"x" * (3 << 20)
    file = await client.files.create(file=("x", content), purpose="user_data")
    assert (await client.files.content(file.id)).content == content
    await client.files.delete(file.id)
    assert await gateway.jobs.files.sweep() == 0
    assert await gateway.jobs.book.purge(gateway.jobs.book.now() + 1) == 3
    with pytest.raises(NotFoundError) as missing:
        await client.batches.retrieve(batch.id)
    assert missing.value.code == "batch_not_found"
