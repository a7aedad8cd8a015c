"""The upgrade rate: an alarm above 15% of the last 100, never on too little evidence (SPEC QM-04).

And no estimate reads more of the store the longer it is kept."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.estimates.verified_sample import UpgradeSettings, recent_verdicts, upgrade_rate, wilson_interval
from quality.monitor.status import InputWatch, calibration_drift, verified_vectors
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import SamplingSettings


def _labels(worse: int, total: int) -> list[bool]:
    return [False] * worse + [True] * (total - worse)


def test_the_first_bad_sample_alone_is_no_alarm() -> None:
    assert not upgrade_rate(_labels(1, 1), UpgradeSettings()).alarm


def test_fifteen_of_a_hundred_is_no_alarm_and_sixteen_is_one() -> None:
    assert not upgrade_rate(_labels(15, 100), UpgradeSettings()).alarm
    assert upgrade_rate(_labels(16, 100), UpgradeSettings()).alarm


def test_a_bad_streak_below_the_minimum_sample_is_no_alarm() -> None:
    assert not upgrade_rate(_labels(49, 49), UpgradeSettings(min_sample=50)).alarm
    assert upgrade_rate(_labels(50, 50), UpgradeSettings(min_sample=50)).alarm


def test_only_the_window_counts_newest_first() -> None:
    rate = upgrade_rate([True] * 100 + [False] * 400, UpgradeSettings())

    assert (rate.needs_upgrade.count, rate.needs_upgrade.total) == (0, 100)


def test_the_reason_gives_the_counts() -> None:
    assert "16 of the last 100" in upgrade_rate(_labels(16, 100), UpgradeSettings()).reason


def test_nothing_observed_says_nothing() -> None:
    nothing = wilson_interval(0, 0)

    assert (nothing.low, nothing.high, nothing.value) == (0.0, 1.0, None)
    assert nothing.shown() == ""


def test_a_share_is_shown_in_per_cent_with_its_interval() -> None:
    # Wilson's interval of 9 of 40.
    assert wilson_interval(9, 40).shown() == "22.5% [12.3, 37.5]"


def test_a_count_above_its_total_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and the total, 3"):
        wilson_interval(4, 3)


async def _spending(engine: AsyncEngine) -> Any:
    return await VerificationQueue(engine, SamplingSettings(), lease_seconds=1.0, max_attempts=1).spending(0.0)


async def plans_of(engine: AsyncEngine, read: Callable[[AsyncEngine], Awaitable[Any]]) -> list[str]:
    """Return SQLite's plans for `read`, without statistics of the rows."""
    asked: list[tuple[str, Any]] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    await read(engine)
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    async with engine.connect() as connection:
        explained = [
            await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            for statement, parameters in asked
            if statement.startswith("SELECT")
        ]
    return [str(row[-1]) for plan in explained for row in plan]


async def test_the_trailing_days_money_is_found_by_indexes_on_time(sqlite_engine: AsyncEngine) -> None:
    found = [line for line in await plans_of(sqlite_engine, _spending) if line.startswith("SEARCH")]

    covering, plain = "USING COVERING INDEX", "USING INDEX"
    # For texts SQLite reads the row, although the index says that there are some.
    assert sorted(found) == [
        f"SEARCH requests {covering} ix_requests_traffic (created_at>?)",
        f"SEARCH requests {plain} ix_requests_texts (created_at>?)",
        f"SEARCH verifications {covering} ix_verifications_spending (finished_at=?)",
        f"SEARCH verifications {covering} ix_verifications_spending (finished_at>?)",
        f"SEARCH verifications {covering} ix_verifications_spending (finished_at>?)",
    ]


async def vectors(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await verified_vectors(connection, "a spec")


@pytest.mark.parametrize(
    ("read", "index"),
    [
        (lambda engine: recent_verdicts(engine, 2, 100), "ix_verifications_verdicts (tier=? AND finished_at>?)"),
        (lambda engine: calibration_drift(engine, [2]), "ix_verifications_verdicts (tier=? AND finished_at>?)"),
        (lambda engine: recent_verdicts(engine, None, 100), "ix_verifications_spending (finished_at>?)"),
        (lambda engine: InputWatch(engine).look(), "ix_training_rows_created_at"),
        (vectors, "ix_training_rows_created_at"),
    ],
)
async def test_the_newest_are_read_in_their_order(
    sqlite_engine: AsyncEngine, read: Callable[[AsyncEngine], Awaitable[Any]], index: str
) -> None:
    plan = await plans_of(sqlite_engine, read)

    assert any(line.endswith(index) for line in plan)
    assert not any("TEMP B-TREE" in line for line in plan)
