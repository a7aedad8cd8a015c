"""Jobs of a running gateway: files, put together and kept within their limits."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.jobs.file_store import DAY_SECONDS, FileStore
from gateway.retries import background
from gateway.settings import Settings

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Jobs:
    """What endpoints reach for."""

    files: FileStore


@asynccontextmanager
async def running_jobs(settings: Settings, engine: AsyncEngine) -> AsyncIterator[Jobs]:
    """Files are kept until they expire."""
    keep = None if settings.file_days is None else settings.file_days * DAY_SECONDS
    files = FileStore(engine, settings.files_quota, keep)
    async with background(_sweeping(files)):
        yield Jobs(files)


async def _sweeping(files: FileStore) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            if gone := await files.sweep():
                log.info("%d files have expired and are deleted", gone)
        except (SQLAlchemyError, OSError) as error:
            log.warning("expired files are deleted later: %s", type(error).__name__)
