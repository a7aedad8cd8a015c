"""Follows the stored training rows that a classifier version has not been trained on, for its immediate repair."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.outcome_model import OutcomeModel
from classifier.recent_memory import Reach, RecentMemory, RecentOutcomes, RecentSettings
from migrations.tables import audit_events, training_rows
from quality.experience import feature_spec, outcomes_of, told_by, trained_until, vector_of
from quality.store import record_audit

RESET = "promotions.reset"


class RecentExperience:
    """The outcomes of one version's recent memory, as they are stored: by whichever replica, erasures included.

    Rows that the version was trained on are not among them. Rows leave when they expire, when they are deleted, and
    when an operator resets the promotions.
    """

    def __init__(self, engine: AsyncEngine, model: OutcomeModel, settings: RecentSettings | None = None) -> None:
        self.settings = settings or RecentSettings()
        self._engine, self._model = engine, model
        self._reach = Reach.of(model.memory)
        self._spec = feature_spec(model.manifest)
        self._trained_until = trained_until(model.manifest)
        self._reset_at = 0.0
        self._start_anew()

    async def catch_up(self, now: float) -> RecentOutcomes:
        """What is known at `now`, in epoch seconds."""
        async with self._engine.connect() as connection:
            await self._forget_what_was_reset(connection)
            after = max(self._reset_at, self._trained_until, now - self.settings.max_age_seconds)
            while self._known and self._known[0][1] <= after:
                self._known.popleft()
            if self._known and await self._stored_between(connection, after) != len(self._known):
                # One of them was deleted, or another was committed behind later ones.
                self._start_anew()
            rows = await self._newer(connection, after)
        if rows:
            self._known.extend((row["training_row_id"], row["created_at"]) for row in rows)
            await asyncio.to_thread(self._take_in, rows)
        return await asyncio.to_thread(self._memory.snapshot, now)

    async def _forget_what_was_reset(self, connection: AsyncConnection) -> None:
        last = select(func.max(audit_events.c.created_at)).where(audit_events.c.action == RESET)
        reset_at = await connection.scalar(last) or 0.0
        if reset_at > self._reset_at:
            self._reset_at = reset_at
            self._start_anew()

    def _start_anew(self) -> None:
        self._memory = RecentMemory(self._reach, self._model.manifest.tiers, self.settings)
        self._known: deque[tuple[int, float]] = deque(maxlen=self.settings.capacity)

    async def _stored_between(self, connection: AsyncConnection, after: float) -> int:
        """How many rows there are from the first to the last that is known."""
        known = training_rows.c.training_row_id.between(self._known[0][0], self._known[-1][0])
        count = select(func.count()).select_from(training_rows).where(known, *self._wanted(after))
        return await connection.scalar(count) or 0

    async def _newer(self, connection: AsyncConnection, after: float) -> Sequence[RowMapping]:
        """The rows behind the last one that is known, as many as fit, oldest first."""
        number = training_rows.c.training_row_id
        last = self._known[-1][0] if self._known else 0
        query = select(training_rows).where(number > last, *self._wanted(after)).order_by(number.desc())
        found = await connection.execute(query.limit(self.settings.capacity))
        return found.mappings().all()[::-1]

    def _wanted(self, after: float) -> tuple[ColumnElement[bool], ...]:
        return (
            training_rows.c.created_at > after,
            training_rows.c.feature_spec == self._spec,
            training_rows.c.features.is_not(None),
        )

    def _take_in(self, rows: Sequence[RowMapping]) -> None:
        manifest = self._model.manifest
        # A catalogue of another number of tiers wrote the others; which of today's tiers they speak of is not known.
        rows = [row for row in rows if len(row["no_worse"]) == manifest.tiers]
        if not rows:
            return
        names, weaker = len(manifest.feature_names), manifest.tiers - 1
        vectors = _stacked(row["features"] for row in rows)
        embeddings = _stacked(row["embedding"] for row in rows)
        p = self._model.outcomes(vectors[:, :names], embeddings, vectors[:, names:]).p[:, :weaker]
        self._memory.add(
            embeddings,
            np.array([outcomes_of(row["no_worse"][:-1]) for row in rows], np.float32),
            p,
            np.array([max(told_by(row, ())) for row in rows], np.float32),
            # A clock that was put back must not make what is newer look older than what was there before.
            np.maximum.accumulate([max(row["created_at"], self._memory.newest) for row in rows]),
        )


async def reset_promotions(engine: AsyncEngine, *, actor: str, reason: str, now: float) -> None:
    """Forget all recent outcomes, on every replica as soon as it looks; what they were is kept for training."""
    await record_audit(engine, at=now, actor=actor, action=RESET, subject="recent outcomes", reason=reason)


def _stacked(blobs: Any) -> npt.NDArray[np.float32]:
    return np.stack([vector_of(blob) for blob in blobs])
