"""Privacy work of a process: applies retention limits, and erases users on request."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from quality.ledger.ledger import Ledger
from quality.loop import QualityLoop
from quality.privacy import Retention, RetentionLimits, erase_user, forget_erased
from quality.store.queries import ErasedRows

log = logging.getLogger(__name__)

EVERY_SECONDS = 600.0
FLUSH_SECONDS = 20.0
ACTOR = "retention"


class UserErased(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted; which classifier versions replaced those trained on the user's rows (by the old one), and
    whether a retraining was started, after which no model was fitted with those rows."""

    key_id: str
    rows: ErasedRows
    replaced: dict[str, str]
    retraining: bool


class Privacy:
    """Retention and erasure of one process. Replicas share the database; each maintains its own registry."""

    def __init__(
        self,
        settings: Settings,
        engine: AsyncEngine,
        ledger: Ledger,
        loop: QualityLoop | None,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        """`forget`: drops what is kept for a key elsewhere than in the database."""
        self._engine, self._ledger, self._loop, self._forget = engine, ledger, loop, forget
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
        """Periodically delete what exceeds the limits, and replace classifier versions that were finished with an
        erased user's rows. Failures are retried."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                purged = await self.retention.purge()
                if any(msgspec.structs.astuple(purged)):
                    log.info("purged: %s", purged)
                await forget_erased(self._engine, self._registry, actor=ACTOR, now=time.time())
            except (SQLAlchemyError, OSError, ArtefactError) as error:
                log.warning("retention did not finish and is retried: %s", error)

    async def erase(self, key_id: str, *, actor: str, reason: str) -> UserErased:
        """Erase the user of this key from the store, this process's memory and journal, and the registry.

        Rows in other processes' journals are dropped on their way into the database. A retraining is started if a
        version was trained on the user's rows. Raises `ArtefactError` for an unreadable version, `TimeoutError` if the
        journal cannot be emptied because the database is down.
        """
        await self._forget(key_id)
        async with asyncio.timeout(FLUSH_SECONDS):
            await self._ledger.flush()
        erased = await erase_user(self._engine, self._registry, key_id, actor=actor, reason=reason, now=time.time())
        retraining = False
        if erased.replaced and self._loop is not None:
            retraining = await self._loop.retrain_now(actor, f"rows of an erased user are gone: {reason}")
        return UserErased(key_id=key_id, rows=erased.rows, replaced=erased.replaced, retraining=retraining)
