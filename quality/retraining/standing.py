"""What the stored runs say about the next one: the last success, failures since, and a run that is owed.

A run that ended with a result counts as made, a refused candidate included. A failed or abandoned one does not: it is
made again, after a wait that doubles. All of it is read from rows, so that a restart changes nothing.
"""

from typing import Literal

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events
from migrations.tables.quality import retrain_runs, training_rows
from migrations.tables.requests import requests

# The wait after the first failure and the longest one, seconds; it doubles from failure to failure.
FIRST_WAIT, LONGEST_WAIT = 600.0, 86_400.0
# Failures that are counted; the wait has reached its maximum long before.
MOST_COUNTED = 100
# Runs that only a person or a program outside repeats.
BY_HAND = ("cli", "button")

Trigger = Literal["cron", "drift", "cli", "button"]


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A run to make, not before `at`; a run since `due` has made it already. Epoch seconds."""

    due: float
    at: float
    trigger: Trigger


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """`known_until`: when the last run with a result began, before it the time of the first record; None without any.
    `failures` since then by any trigger, and the last one's `error`. `retry_at`: when a scheduled run may begin again
    after failures. `owed`: an abandoned run, or one of an alarm that failed; `under_way`: a run has not ended.
    `refused`: why the last refused candidate was refused, at `refused_at`. Epoch seconds."""

    known_until: float | None = None
    failures: int = 0
    error: str | None = None
    retry_at: float | None = None
    under_way: bool = False
    owed: Owed | None = None
    refused: str | None = None
    refused_at: float | None = None


def wait_after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, at least one."""
    return min(FIRST_WAIT * 2.0 ** (failures - 1), LONGEST_WAIT) if failures < MOST_COUNTED else LONGEST_WAIT


async def read_standing(engine: AsyncEngine) -> Standing:
    """Read the runs. Raises the database's errors."""
    async with engine.connect() as connection:
        last = await connection.scalar(
            select(func.max(retrain_runs.c.created_at)).where(retrain_runs.c.status == "done")
        )
        since = [retrain_runs.c.status.in_(("failed", "running"))]
        if last is not None:
            since.append(retrain_runs.c.created_at > last)
        query = select(retrain_runs).where(*since).order_by(retrain_runs.c.created_at.desc()).limit(MOST_COUNTED)
        rows = (await connection.execute(query)).mappings().all()
        failed = [row for row in rows if row["status"] == "failed"]
        unattended = [row for row in failed if row["trigger"] not in BY_HAND]
        running = next((row for row in rows if row["status"] == "running"), None)
        refusal = (
            await connection.execute(
                select(audit_events.c.reason, audit_events.c.created_at)
                .where(audit_events.c.action == "classifier.refused")
                .order_by(audit_events.c.created_at.desc())
                .limit(1)
            )
        ).first()
        retry_at = None if not unattended else unattended[0]["finished_at"] + wait_after(len(unattended))
        owed = None
        if running is not None:
            at = running["lease_until"] + await _wait_of_resumed(connection, running["run_id"])
            owed = Owed(due=running["created_at"], at=at, trigger=running["trigger"])
        elif retry_at is not None and unattended[0]["trigger"] == "drift":
            owed = Owed(due=retry_at, at=retry_at, trigger="drift")
        return Standing(
            known_until=last if last is not None else await _first_record(connection),
            failures=len(failed),
            error=failed[0]["error"] if failed else None,
            retry_at=retry_at,
            under_way=running is not None,
            owed=owed,
            refused=None if refusal is None else refusal.reason,
            refused_at=None if refusal is None else refusal.created_at,
        )


async def _wait_of_resumed(connection: AsyncConnection, run_id: str) -> float:
    """Return the seconds from the end of an abandoned run's lease until it is resumed: a run that ends its process
    every time must not do so all day."""
    resumed = await connection.scalar(
        select(func.count()).where(audit_events.c.action == "retrain.resumed", audit_events.c.subject == run_id)
    )
    return wait_after(resumed) if resumed else 0.0


async def _first_record(connection: AsyncConnection) -> float | None:
    # Requests may be deleted before what was learned from them, and outcomes may be imported without requests.
    first = [await connection.scalar(select(func.min(table.c.created_at))) for table in (requests, training_rows)]
    return min((at for at in first if at is not None), default=None)
