"""Runs of the retraining job as rows: one at a time over all replicas, taken over if their runner dies; and what they
say about the next one: the last success, failures since, and a run that is owed.

A run that ended with a result counts as made, a refused candidate included. A failed or abandoned one does not: it is
made again, after a wait that doubles. All of it is read from rows, so that a restart changes nothing."""

import uuid
from typing import Any, Literal

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import audit_events, audited
from migrations.tables.quality import retrain_runs, training_rows
from migrations.tables.requests import requests
from quality.statistics import MIN_ROWS
from quality.store.queries import labels_count_from


class LeaseLostError(RuntimeError):
    """Another runner has taken over the run; this one must stop without writing."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run held by this process."""

    run_id: str
    owner: str
    step: str | None = None
    """The step of an earlier runner that died, else None."""
    data_hash: str | None = None
    """The data of an earlier runner that died, else None."""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """Another runner holds the lease."""

    run_id: str
    owner: str
    lease_until: float


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The due run has been made, here or by another runner."""

    run_id: str


class RetrainRuns:
    """Rows of `retrain_runs`, held by a lease. The schema allows one running row, so two starts make one run."""

    def __init__(self, engine: AsyncEngine, lease_seconds: float) -> None:
        self._engine = engine
        self.lease_seconds = lease_seconds
        self._owner = f"retrain-{uuid.uuid4().hex}"

    async def acquire(self, trigger: str, now: float, due: float | None = None) -> Run | Busy | Made:
        """Start a run, take over an abandoned one, or return `Busy`; with `due` (epoch seconds), start none if another
        has started since then, but return `Made`."""
        run_id = uuid.uuid4().hex
        row = {
            "run_id": run_id,
            "trigger": trigger,
            "status": "running",
            "owner": self._owner,
            "lease_until": now + self.lease_seconds,
            "created_at": now,
        }
        try:
            async with self._engine.connect() as connection:
                await connection.execute(insert(retrain_runs).values(row))
                # After the insert: it waits for a run under way to end, which is then seen here.
                if due is not None and (made := await self._made_since(connection, due)) is not None:
                    return made
                await self._audit(connection, now, "retrain.started", run_id, f"trigger: {trigger}", None)
                await connection.commit()
            return Run(run_id=run_id, owner=self._owner)
        except IntegrityError:
            return await self._take_over(trigger, now, due)

    async def renew(self, run: Run, now: float) -> None:
        """Renew the lease. Raises `LeaseLostError`."""
        await self._write(run, {"lease_until": now + self.lease_seconds})

    async def release(self, run: Run, now: float) -> None:
        """Give up an unfinished run, so that the next start resumes it at once. Raises `LeaseLostError`."""
        await self._write(run, {"lease_until": now})

    async def advance(self, run: Run, step: str, now: float, fields: dict[str, Any] | None = None) -> None:
        """Store that `step` is reached, with the results so far, and audit it. Raises `LeaseLostError`."""
        async with self._engine.begin() as connection:
            updates = {"step": step, "lease_until": now + self.lease_seconds, **(fields or {})}
            await self._update(connection, run, updates)
            await self._audit(connection, now, f"retrain.{step}", run.run_id, "the run goes on", fields)

    async def finish(
        self, connection: AsyncConnection, run: Run, now: float, *, action: str, reason: str, fields: dict[str, Any]
    ) -> None:
        """End the run in the caller's transaction, with its audit row. Raises `LeaseLostError`."""
        await self._update(connection, run, {"reason": reason, "finished_at": now, **fields})
        await self._audit(connection, now, action, run.run_id, reason, fields.get("metrics"))

    async def last_trained_hash(self) -> str | None:
        """Return the data hash of the last finished run; None before the first."""
        query = (
            select(retrain_runs.c.data_hash)
            .where(retrain_runs.c.status == "done", retrain_runs.c.data_hash.is_not(None))
            .order_by(retrain_runs.c.created_at.desc())
            .limit(1)
        )
        async with self._engine.connect() as connection:
            data_hash: str | None = await connection.scalar(query)
        return data_hash

    async def judged(self) -> int:
        """Return how many candidates were judged by enough rows since the last one that was accepted, and since labels
        were reset. With fewer rows none is accepted, so such a look is no chance of a mistake."""
        last = select(func.max(audit_events.c.created_at)).where(audit_events.c.action == "retrain.accepted")
        async with self._engine.connect() as connection:
            reset_at, accepted_at = await labels_count_from(connection), await connection.scalar(last) or 0.0
            query = select(retrain_runs.c.metrics).where(
                retrain_runs.c.status == "done",
                retrain_runs.c.classifier_version.is_not(None),
                retrain_runs.c.finished_at > max(reset_at, accepted_at),
            )
            metrics = (await connection.execute(query)).scalars().all()
        return sum(1 for judgement in metrics if judgement and judgement.get("new_rows", 0) >= MIN_ROWS)

    async def _made_since(self, connection: AsyncConnection, due: float) -> Made | None:
        query = (
            select(retrain_runs.c.run_id)
            .where(retrain_runs.c.status != "running", retrain_runs.c.created_at >= due)
            .limit(1)
        )
        run_id: str | None = await connection.scalar(query)
        return None if run_id is None else Made(run_id=run_id)

    async def _take_over(self, trigger: str, now: float, due: float | None) -> Run | Busy | Made:
        query = select(retrain_runs).where(retrain_runs.c.status == "running")
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None:
            # The run ended between our insert and this query; the next try starts a new one.
            return await self.acquire(trigger, now, due)
        busy = Busy(run_id=row["run_id"], owner=row["owner"], lease_until=row["lease_until"])
        if busy.lease_until > now:
            return busy
        async with self._engine.begin() as connection:
            taken = await connection.execute(
                update(retrain_runs)
                .where(
                    retrain_runs.c.run_id == busy.run_id,
                    retrain_runs.c.status == "running",
                    retrain_runs.c.owner == busy.owner,
                    retrain_runs.c.lease_until == busy.lease_until,
                )
                .values(owner=self._owner, lease_until=now + self.lease_seconds)
            )
            if not taken.rowcount:
                return busy
            reason = f"{busy.owner} let its lease expire"
            await self._audit(connection, now, "retrain.resumed", busy.run_id, reason, None)
        return Run(run_id=busy.run_id, owner=self._owner, step=row["step"], data_hash=row["data_hash"])

    async def _write(self, run: Run, fields: dict[str, Any]) -> None:
        async with self._engine.begin() as connection:
            await self._update(connection, run, fields)

    async def _update(self, connection: AsyncConnection, run: Run, fields: dict[str, Any]) -> None:
        held = await connection.execute(
            update(retrain_runs)
            .where(
                retrain_runs.c.run_id == run.run_id,
                retrain_runs.c.owner == run.owner,
                retrain_runs.c.status == "running",
            )
            .values(**fields)
        )
        if not held.rowcount:
            raise LeaseLostError(f"retraining run {run.run_id} was taken over by another runner")

    async def _audit(
        self, connection: AsyncConnection, now: float, action: str, subject: str, reason: str, details: Any
    ) -> None:
        await connection.execute(audited(now, self._owner, action, subject, reason, details))


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


class RetrainingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of retraining. Times are epoch seconds."""

    known_until: float | None = None
    """When the last run with a result began, before it the time of the first record; None without any."""
    failures: int = 0
    """Failures since then, by any trigger."""
    error: str | None = None
    """The error of the last failure."""
    retry_at: float | None = None
    """When a scheduled run may begin again after failures."""
    under_way: bool = False
    """Whether a run has not ended."""
    owed: Owed | None = None
    """An abandoned run, or one of an alarm that failed."""
    refused: str | None = None
    """Why the last refused candidate was refused."""
    refused_at: float | None = None
    """When it was refused."""


def wait_after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, at least one."""
    return min(FIRST_WAIT * 2.0 ** (failures - 1), LONGEST_WAIT) if failures < MOST_COUNTED else LONGEST_WAIT


async def read_standing(engine: AsyncEngine) -> RetrainingStatus:
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
        return RetrainingStatus(
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
