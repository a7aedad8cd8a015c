"""Follow the stored labels of a catalogue that is routed by complexity class, and fit its cells and heads."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.local.own import LabelledRow, OwnOutcomes
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import OutcomeModel
from migrations.tables.quality import training_rows
from quality.monitor.watches import Changes, changes_for, tenants_changes
from quality.store.queries import labels_count_from
from quality.verification.training_rows import (
    ANY_CLASS,
    FEEDBACK,
    TENANT,
    USES_TEAMS,
    WITH_KEYS,
    feature_spec,
    informed_by,
    learning_group,
    outcomes_of,
    outcomes_of_tiers,
    told_by,
    trained_until,
    vector_of,
    whole_classes_of,
    without_errors,
)

Float = npt.NDArray[np.float32]

# So many labels are used: the newest of each tenant, and equally many of those with too many. A key's head learns from
# its newest few hundred.
MOST_LABELS = 8192
# Weight of a label from before a change of its tier's answers: which prompts are harder has hardly changed.
BEFORE_CHANGE = 0.1


class OwnLabels:
    """The stored labels of one catalogue, from all replicas, with erasures and resets applied."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: OutcomeModel,
        table: Float,
        tiers: Callable[[], Sequence[str]] = tuple,
        head: LearnedHead | None = None,
        keys_are_tenants: bool = False,
    ) -> None:
        """`table` [4, tiers - 1]: `model`'s estimate for the tiers by class, and `head` one that replaces it; `tiers`:
        their current fingerprints, whose outcomes alone count; `keys_are_tenants`: those without a team, also where no
        key has one."""
        self._group = learning_group(keys_are_tenants)
        self._engine, self._table, self._tiers, self._head = engine, table, tiers, head
        self._known_until = trained_until(model.manifest)
        self._spec, self._manifest = feature_spec(model.manifest), model.manifest
        self._seen: tuple[Any, ...] | None = None
        self._own: OwnOutcomes | None = None

    async def catch_up(self, now: float) -> OwnOutcomes | None:
        """Return the estimator at `now` (epoch seconds); None without labels. Read and fit only after a change."""
        changes, tiers = await tenants_changes(self._engine), self._tiers_now()
        async with self._engine.connect() as connection:
            after = await labels_count_from(connection)
            in_teams = await connection.scalar(select(USES_TEAMS))
            seen = (*await self._extent(connection, after), after, tiers, changes, in_teams)
            if seen == self._seen:
                return self._own
            rows = await self._rows(connection, after, MOST_LABELS)
        self._own = await asyncio.to_thread(self._fitted, rows, tiers, changes) if rows else None
        self._seen = seen
        return self._own

    async def newest(self, most: int) -> list[LabelledRow]:
        """Return the newest `most` stored labels that count, oldest first."""
        changes, tiers = await tenants_changes(self._engine), self._tiers_now()
        async with self._engine.connect() as connection:
            rows = await self._rows(connection, await labels_count_from(connection), most)
        return await asyncio.to_thread(self._known, rows, tiers, changes)

    def _tiers_now(self) -> tuple[str, ...]:
        return tuple(self._tiers()) or ("",) * (self._table.shape[1] + 1)

    async def _extent(self, connection: AsyncConnection, after: float) -> tuple[Any, ...]:
        """Return a value that changes with every insertion or deletion."""
        row = training_rows.c
        ends = func.count(), func.min(row.training_row_id), func.max(row.training_row_id), func.max(row.created_at)
        return tuple((await connection.execute(select(*ends).where(row.created_at > after))).one())

    async def _rows(self, connection: AsyncConnection, after: float, most: int) -> Sequence[RowMapping]:
        """Return at most `most` rows with their `tenant`, oldest first: a tenant's newest before another's older ones,
        so that none takes another's room."""
        number = training_rows.c.training_row_id
        newest_first = func.row_number().over(partition_by=TENANT, order_by=number.desc()).label("place")
        placed = select(number, newest_first).select_from(WITH_KEYS).where(*self._wanted(after)).subquery()
        chosen = select(placed.c.training_row_id).order_by(placed.c.place, placed.c.training_row_id.desc()).limit(most)
        query = (
            select(training_rows, TENANT, self._group).select_from(WITH_KEYS).where(number.in_(chosen)).order_by(number)
        )
        return (await connection.execute(query)).mappings().all()

    def _wanted(self, after: float) -> tuple[Any, ...]:
        return (
            training_rows.c.created_at > after,
            training_rows.c.feature_spec == self._spec,
            training_rows.c.features.is_not(None),
        )

    def _fitted(self, rows: Sequence[RowMapping], tiers: Sequence[str], changes: Changes) -> OwnOutcomes | None:
        labelled = self._known(rows, tiers, changes)
        return OwnOutcomes(labelled, self._table, self._known_until, self._head) if labelled else None

    def _known(self, rows: Sequence[RowMapping], tiers: Sequence[str], changes: Changes) -> list[LabelledRow]:
        of_tenant = {tenant: changes_for(changes, tenant) for tenant in {row["tenant"] for row in rows}}
        labelled = [self._labelled(row, tiers, of_tenant[row["tenant"]]) for row in rows]
        return [row for row in labelled if row is not None]

    def _labelled(self, row: RowMapping, tiers: Sequence[str], changes: Mapping[int, float]) -> LabelledRow | None:
        outcomes = outcomes_of_tiers(row["no_worse"], row["tiers"], tiers)
        if outcomes is None:
            return None
        decay = before_change(row["created_at"], len(tiers) - 1, changes)
        informed = np.array(informed_by(row, tiers), np.float32)
        scores = without_errors(np.array(outcomes_of(outcomes[:-1]), np.float32), informed)
        return LabelledRow(
            classes=row["classes"] or ANY_CLASS,
            embedding=vector_of(row["embedding"]),
            features=vector_of(row["features"])[: len(self._manifest.feature_names)],
            scores=scores.tolist(),
            weights=(np.array(told_by(row, tiers)) * informed * decay).tolist(),
            key=row["key_id"] or "",
            app=row["app"] or "",
            at=row["created_at"],
            tenant=row["learning_group"],
            private=row["source"] == FEEDBACK,
            whole=whole_classes_of(row, self._manifest),
        )


def before_change(at: float, weaker: int, changes: Mapping[int, float]) -> list[float]:
    """Return by weaker tier the weight's share that a label of time `at` keeps after `changes`, in epoch seconds."""
    return [BEFORE_CHANGE if at < changes.get(k, -math.inf) else 1.0 for k in range(1, weaker + 1)]
