"""The states of classifier versions as rows: candidate, canary, promoted, refused, rolled back, retired, each with a
reason; and one writer at a time over all replicas, for the registry's pointer and the rows about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.model.outcome_model import Manifest
from migrations.tables.quality import classifier_versions
from quality.store.database import writing_first
from quality.store.queries import exclusive

_REGISTRY_LOCK = 0x41494F04  # PostgreSQL advisory lock number: "AIO", 4


@asynccontextmanager
async def registry_transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that excludes all others of its kind.

    Write the pointer last: an unavailable database then leaves it unchanged, and after a crash before the commit the
    next `Rollouts.advance` resets it to what the rows say.
    """
    async with exclusive(engine, _REGISTRY_LOCK) as connection:
        yield connection


VersionStatus = Literal["candidate", "canary", "promoted", "retired", "refused", "rolled_back"]


class ClassifierVersions:
    """Rows of `classifier_versions`. Exactly one is promoted: the one that the registry's pointer names."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def ensure(self, manifest: Manifest, folder: Path, now: float) -> None:
        """Store that `manifest` serves, if its row says otherwise: it was shipped, or promoted by hand."""
        # A transaction that reads before it writes must hold SQLite's write lock from the start.
        async with writing_first(self._engine).begin() as connection:
            status = await self._status(connection, manifest.version)
            if status == "promoted":
                return
            reason = "was serving when first seen" if status is None else f"serves though it was {status}"
            await self.became(connection, manifest.version, folder, "promoted", reason, now, parent=manifest.parent)

    async def first_seen(self, connection: AsyncConnection, version: str, folder: Path, now: float) -> None:
        """In the caller's transaction, store that `version` serves, if it has no row yet."""
        if await self._status(connection, version) is None:
            await self.became(connection, version, folder, "promoted", "was serving when first seen", now)

    async def became(
        self,
        connection: AsyncConnection,
        version: str,
        folder: Path,
        status: VersionStatus,
        reason: str,
        now: float,
        *,
        parent: str | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        """In the caller's transaction, store the new state of `version`; a promotion retires the previous version."""
        fields: dict[str, Any] = {"path": str(folder), "status": status, "reason": reason}
        fields |= {name: value for name, value in (("parent", parent), ("metrics", metrics)) if value is not None}
        if status == "promoted":
            others = (classifier_versions.c.status == "promoted", classifier_versions.c.version != version)
            retired = update(classifier_versions).where(*others).values(status="retired", retired_at=now)
            await connection.execute(retired)
            fields |= {"promoted_at": now, "retired_at": None}
        elif status == "rolled_back":
            fields |= {"retired_at": now}
        if await self._status(connection, version) is None:
            row = {"version": version, "metrics": {}, "created_at": now, **fields}
            await connection.execute(insert(classifier_versions).values(row))
        else:
            await self._set(connection, version, fields)

    async def trained(self, version: str, folder: Path, incumbent: str, now: float) -> None:
        """Store a new candidate against `incumbent`; a candidate that was stored before keeps its row."""
        async with writing_first(self._engine).begin() as connection:
            if await self._status(connection, version) is None:
                reason = "trained, to be decided on"
                await self.became(connection, version, folder, "candidate", reason, now, parent=incumbent)

    async def why_rolled_back(self, connection: AsyncConnection, version: str) -> str | None:
        """Return the reason if live evidence has rolled `version` back before."""
        query = select(classifier_versions.c.reason).where(
            classifier_versions.c.version == version, classifier_versions.c.status == "rolled_back"
        )
        reason: str | None = await connection.scalar(query)
        return reason

    async def _set(self, connection: AsyncConnection, version: str, fields: dict[str, Any]) -> None:
        mine = classifier_versions.c.version == version
        await connection.execute(update(classifier_versions).where(mine).values(**fields))

    async def _status(self, connection: AsyncConnection, version: str) -> str | None:
        status: str | None = await connection.scalar(
            select(classifier_versions.c.status).where(classifier_versions.c.version == version)
        )
        return status
