"""Privacy work of a process: applies retention limits, and erases users on request."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.registry.artefact import drop_rows
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from quality.ledger.ledger import Ledger
from quality.privacy import Retention, RetentionLimits, erase_user
from quality.store.queries import ErasedRows

log = logging.getLogger(__name__)

EVERY_SECONDS = 600.0
FLUSH_SECONDS = 20.0


class UserErased(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted."""

    key_id: str
    rows: ErasedRows


class Privacy:
    """Retention and erasure of one process. Replicas share the database; each maintains its own registry."""

    def __init__(
        self,
        settings: Settings,
        engine: AsyncEngine,
        ledger: Ledger,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        """`forget`: drops what is kept for a key elsewhere than in the database."""
        self._engine, self._ledger, self._forget = engine, ledger, forget
        self._registry = ArtefactRegistry(settings.registry_path)
        self.retention = Retention(
            engine,
            RetentionLimits(
                text_days=settings.text_days,
                days=settings.retain_days,
                rows=settings.retain_rows,
                gigabytes=settings.retain_gigabytes,
                training_days=settings.training_days,
                training_rows=settings.training_rows,
            ),
        )

    async def keep(self) -> None:
        """Periodically delete what exceeds the limits, and the encoded prompts that classifier versions of earlier
        releases keep. Failures are retried."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                purged = await self.retention.purge()
                if any(msgspec.structs.astuple(purged)):
                    log.info("purged: %s", purged)
                if rewritten := await asyncio.to_thread(drop_rows, self._registry):
                    log.info("classifier versions no longer keep encoded prompts: %s", ", ".join(rewritten))
            except (SQLAlchemyError, OSError, ArtefactError) as error:
                log.warning("retention did not finish and is retried: %s", error)

    async def erase(self, key_id: str, *, actor: str, reason: str) -> UserErased:
        """Erase the user of this key from the store, this process's memory and journal, and the registry.

        Rows in other processes' journals are dropped on their way into the database. Raises `ArtefactError` for an
        unreadable version, whose rows are deleted later, `TimeoutError` if the journal cannot be emptied because the
        database is down.
        """
        await self._forget(key_id)
        async with asyncio.timeout(FLUSH_SECONDS):
            await self._ledger.flush()
        rows = await erase_user(self._engine, key_id, actor=actor, reason=reason, now=time.time())
        await asyncio.to_thread(drop_rows, self._registry)
        return UserErased(key_id=key_id, rows=rows)
