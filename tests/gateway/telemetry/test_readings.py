"""Figures are read for all viewers together, and no page waits for a database that does not answer."""

import asyncio

import pytest
from sqlalchemy.exc import OperationalError

from gateway.telemetry import readings
from gateway.telemetry.readings import FRESH_SECONDS, MOST_READINGS, SHARE, Readings
from quality.estimates.traffic import Bucket, Span, Traffic
from tests.support.clock import Clock

NOTHING = Bucket(
    at=0.0, answered={}, failed=0, refused=0, verified=0, worse=0, cost_usd=0.0, strongest_usd=0.0, ttft_p50=None,
    ttft_p95=None,
)  # fmt: skip


class Database:
    """Answers after `seconds` of the clock, counts how often it was asked, and may be away or silent."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked, self.seconds = clock, 0, 0.0
        self.away, self.silent = False, asyncio.Event()
        self.silent.set()

    async def read(self, span: Span) -> Traffic:
        self.asked += 1
        await self.silent.wait()
        self.clock.now += self.seconds
        if self.away:
            raise OperationalError("SELECT", {}, Exception("away"))
        return Traffic(
            span=span, until=self.clock.now, seconds=60.0, buckets=[NOTHING], together=NOTHING, causes=[], changes=[]
        )  # fmt: skip


@pytest.fixture
def database() -> Database:
    return Database(Clock(0.0))


@pytest.fixture
def traffic(database: Database) -> Readings[Span, Traffic]:
    return Readings(database.read, database.clock)


async def test_viewers_share_a_reading_while_it_is_fresh(database: Database, traffic: Readings[Span, Traffic]) -> None:
    seen = await asyncio.gather(*(traffic.look("1h") for _ in range(5)))
    assert database.asked == 1
    assert len({id(one) for one in seen}) == 1
    database.clock.now += FRESH_SECONDS
    assert await traffic.look("1h") is not seen[0]
    await traffic.look("7d")
    assert database.asked == 3


async def test_a_slow_reading_is_not_repeated_soon(database: Database, traffic: Readings[Span, Traffic]) -> None:
    database.seconds = 5.0
    await traffic.look("7d")
    database.clock.now += 5.0 / SHARE - 1
    await traffic.look("7d")
    assert database.asked == 1
    database.clock.now += 1
    await traffic.look("7d")
    assert database.asked == 2


async def test_without_an_answer_the_last_figures_stand(
    database: Database, traffic: Readings[Span, Traffic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "WAIT_SECONDS", 0.01)
    database.silent.clear()
    assert await traffic.look("1h") is None
    database.silent.set()
    first = await traffic.look("1h")
    assert first is not None
    database.away = True
    database.clock.now += FRESH_SECONDS
    assert await traffic.look("1h") is first
    assert database.asked == 2


async def test_closing_ends_a_reading(
    database: Database, traffic: Readings[Span, Traffic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "WAIT_SECONDS", 0.01)
    database.silent.clear()
    await traffic.look("1h")
    await traffic.close()
    assert not traffic._reading


async def test_the_oldest_readings_are_forgotten() -> None:
    asked: list[int] = []

    async def read(number: int) -> int:
        asked.append(number)
        return number

    numbers = Readings(read, Clock(0.0))
    for number in range(MOST_READINGS + 1):
        await numbers.look(number)
    assert [await numbers.look(number) for number in (MOST_READINGS, 0)] == [MOST_READINGS, 0]
    assert asked == [*range(MOST_READINGS + 1), 0]
