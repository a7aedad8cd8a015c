"""What counts as a refused request, how many are kept apart, and what becomes of them without a database."""

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from websockets.asyncio.client import connect

from gateway.base.errors import ApiError, ClientGoneError, as_api_error, is_recorded, mark_recorded
from gateway.base.inference_request import Caller
from gateway.telemetry.refused_requests import MOST_KINDS, MOST_LINES, RefusedMetrics, RefusedRequests
from quality.store.database import migrate, open_database
from quality.store.pages import REFUSED
from tests.support.app import RunningGateway
from tests.support.clock import Clock
from tests.support.database import migrated
from tiers.catalog.consent import Consent
from tiers.errors import TierError

DENIED = ApiError(404, "There is no model 'x'.", code="model_not_found")


def refusals(clock: Clock, *, keeps_messages: bool = True) -> RefusedRequests:
    metrics = RefusedMetrics(CollectorRegistry(), CollectorRegistry())
    return RefusedRequests(metrics, keeps_messages=keeps_messages, clock=clock)


async def rows_of(engine: AsyncEngine) -> list[dict[str, Any]]:
    return (await REFUSED.page(engine, {}, limit=1000)).rows


@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_failed_has_a_record_and_is_not_counted(gateway: RunningGateway) -> None:
    for tier in gateway.tiers:
        tier.fail_at, tier.error = 0, TierError("broken")
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}]}
    assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 500
    assert "aio_refused_requests_total{" not in (await gateway.http.get("/metrics")).text


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_socket_refuses_is_counted(gateway: RunningGateway) -> None:
    async with connect(f"{gateway.url.replace('http', 'ws')}/v1/chat/completions/ws") as socket:
        await socket.send('{"type": "dance"}')
        assert "allowed are chat and cancel" in str(await socket.recv())
    shown = (await gateway.http.get("/metrics")).text
    assert 'aio_refused_requests_total{code="invalid_value",status="400"} 1.0' in shown


def test_a_failure_raised_for_a_recorded_one_is_recorded() -> None:
    inner = TierError("broken")
    mark_recorded(inner)
    outer = as_api_error(inner)
    outer.__context__ = inner
    assert is_recorded(outer)
    assert not is_recorded(DENIED)


async def test_counts_of_processes_are_added_by_minute(database_url: str) -> None:
    clock = Clock(6000.0)
    async with migrated(database_url) as engine:
        one, other = refusals(clock), refusals(clock)
        for process in (one, other):
            for number in range(3):
                process.count(DENIED, Caller(key_id="k"), "/v1/chat/completions", f"r{number}")
            process.count(ClientGoneError(), Caller(key_id="k"), "", "gone")
            await process.save(engine)
        clock.now += 60
        one.count(DENIED, Caller(key_id="k", consent=Consent(reuse=False)), "", "late\0")
        await one.save(engine)

        rows = [(row["created_at"], row["count"], row["last_message"]) for row in await rows_of(engine)]
        assert rows == [(6060.0, 1, None), (6000.0, 6, "There is no model 'x'.")]


async def test_a_flood_of_combinations_is_kept_in_bounded_space(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(6000.0)
    async with migrated(sqlite_url) as engine:
        counted = refusals(clock)
        with caplog.at_level(logging.INFO, "aio.refused"):
            for number in range(3 * MOST_KINDS):
                counted.count(DENIED, Caller(key_id=f"k{number}"), "", "r")
            assert len(caplog.records) == MOST_LINES
            clock.now += 61
            counted.count(DENIED, Caller(key_id="k0"), "", "r")
        assert caplog.records[-1].fields["more_before"] == 3 * MOST_KINDS - MOST_LINES  # type: ignore[attr-defined]
        await counted.save(engine)
        rows = await rows_of(engine)
        assert len(rows) == MOST_KINDS + 2
        assert {row["count"] for row in rows if row["key_id"] == "other"} == {2 * MOST_KINDS}


async def test_what_could_not_be_stored_is_stored_later_once(sqlite_url: str) -> None:
    engine, counted = open_database(sqlite_url), refusals(Clock(6000.0))
    counted.count(DENIED, Caller(), "", "first")
    with pytest.raises(OperationalError):
        await counted.save(engine)  # no table yet
    counted.count(DENIED, Caller(), "", "second")
    await migrate(sqlite_url)
    await counted.save(engine)
    await counted.save(engine)
    assert [(row["count"], row["last_request_id"], row["key_id"]) for row in await rows_of(engine)] == [
        (2, "second", None)
    ]
    await engine.dispose()


async def test_redaction_keeps_no_message(sqlite_url: str) -> None:
    counted = refusals(Clock(6000.0), keeps_messages=False)
    async with migrated(sqlite_url) as engine:
        counted.count(DENIED, Caller(), "", "first")
        await counted.save(engine)
        assert (await rows_of(engine))[0]["last_message"] is None
