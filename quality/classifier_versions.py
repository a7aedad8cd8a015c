"""The life of every classifier version as rows: candidate, promoted, refused, retired, and why."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.manifest import Manifest
from migrations.tables import audit_events, classifier_versions


class ClassifierVersions:
    """Rows of `classifier_versions`. Exactly one is promoted: the one the registry's pointer names."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def ensure(self, manifest: Manifest, folder: Path, now: float) -> None:
        """Note that `manifest` serves, if its row does not say so: it came with the program or was promoted by hand."""
        fields = {
            "parent": manifest.parent,
            "path": str(folder),
            "status": "promoted",
            "metrics": manifest.metrics,
            "promoted_at": now,
            "retired_at": None,
        }
        async with self._writing() as connection:
            status = await self._status(connection, manifest.version)
            if status == "promoted":
                return
            await self._retire(connection, now)
            if status is None:
                reason = "was serving when first seen"
                await connection.execute(
                    insert(classifier_versions).values(
                        version=manifest.version, reason=reason, created_at=now, **fields
                    )
                )
            else:
                await self._set(connection, manifest.version, {**fields, "reason": f"serves though it was {status}"})

    async def trained(self, candidate: Manifest, folder: Path, incumbent: str, now: float) -> None:
        """Note a fresh candidate against `incumbent`; one that has been there before keeps its row."""
        async with self._writing() as connection:
            if await self._status(connection, candidate.version) is None:
                await connection.execute(
                    insert(classifier_versions).values(
                        version=candidate.version,
                        parent=incumbent,
                        path=str(folder),
                        status="candidate",
                        reason="trained, to be decided on",
                        metrics={},
                        created_at=now,
                    )
                )

    async def decided(
        self,
        connection: AsyncConnection,
        candidate: Manifest,
        folder: Path,
        incumbent: str,
        outcome: Literal["promoted", "refused"],
        reason: str,
        metrics: dict[str, Any],
        now: float,
    ) -> None:
        """In the caller's transaction, write what became of `candidate`; `incumbent` is retired by a promotion."""
        promoted = outcome == "promoted"
        if promoted:
            await self._retire(connection, now)
        fields = {
            "parent": incumbent,
            "path": str(folder),
            "status": outcome,
            "reason": reason,
            "metrics": metrics,
            "promoted_at": now if promoted else None,
            "retired_at": None,
        }
        if await self._status(connection, candidate.version) is None:
            await connection.execute(
                insert(classifier_versions).values(version=candidate.version, created_at=now, **fields)
            )
        else:
            await self._set(connection, candidate.version, fields)

    async def rolled_back(
        self, restored: Manifest, folder: Path, retired: str, actor: str, reason: str, now: float
    ) -> None:
        """Write that `restored` serves again instead of `retired`, with an audit row."""
        await self.ensure(restored, folder, now)
        async with self._writing() as connection:
            await self._set(connection, restored.version, {"reason": f"rolled back to: {reason}"})
            await connection.execute(
                insert(audit_events).values(
                    created_at=now,
                    actor=actor,
                    action="classifier.rolled_back",
                    subject=restored.version,
                    reason=reason,
                    details={"retired": retired},
                )
            )

    async def _retire(self, connection: AsyncConnection, now: float) -> None:
        await connection.execute(
            update(classifier_versions)
            .where(classifier_versions.c.status == "promoted")
            .values(status="retired", retired_at=now)
        )

    async def _set(self, connection: AsyncConnection, version: str, fields: dict[str, Any]) -> None:
        mine = classifier_versions.c.version == version
        await connection.execute(update(classifier_versions).where(mine).values(**fields))

    def _writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        # A transaction that reads first and then writes must hold SQLite's write lock from the beginning.
        return self._engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").begin()

    async def _status(self, connection: AsyncConnection, version: str) -> str | None:
        found: str | None = await connection.scalar(
            select(classifier_versions.c.status).where(classifier_versions.c.version == version)
        )
        return found
