"""The jobs of a running gateway: files and batches, advanced step by step and kept within their limits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.knobs.file import KnobFile
from gateway.base.settings import Settings
from gateway.base.stores.database_time import DatabaseTime
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background
from gateway.batches.batch import Batch, NewBatch
from gateway.batches.batch_book import BatchBook
from gateway.batches.batch_knobs import BatchKnobs
from gateway.batches.database_queue import DatabaseQueue
from gateway.batches.file_store import DAY_SECONDS, FileStore, Owner
from gateway.batches.job_queue import JobQueue
from gateway.batches.keeper import BatchKeeper
from gateway.batches.line_book import LineBook
from gateway.batches.line_worker import AnswerLine, LineWorker
from gateway.telemetry.metrics.families import JobMetrics
from inference_core.io.background_tasks import once

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
# How soon a process notices a batch that another process made, cancelled or finished.
POLL_SECONDS = 1.0


class Jobs:
    """What the endpoints use, and the loop that advances batches in this process, which leases call `process`."""

    def __init__(
        self,
        settings: Settings,
        engine: AsyncEngine,
        clock: DatabaseTime,
        process: str,
        redis: RedisStore | None,
        metrics: JobMetrics,
    ) -> None:
        keep = None if settings.file_days is None else settings.file_days * DAY_SECONDS
        self.files = FileStore(engine, settings.files_quota, keep)
        self.book = BatchBook(engine, clock, process)
        self.lines = LineBook(engine)
        self.knobs = KnobFile(BatchKnobs, "batches", settings.batch_knobs_path)
        self.queue: JobQueue = DatabaseQueue(engine, clock, process, settings.batch_lease_seconds)
        if redis is not None:
            from gateway.batches.redis_queue import RedisQueue

            self.queue = RedisQueue(redis, self.lines, process, settings.batch_lease_seconds)
        self._keeper = BatchKeeper(engine, self.book, self.lines, self.files, self.queue, settings.body_limit)
        self._settings, self._metrics = settings, metrics
        self._worker: LineWorker | None = None
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._awake = asyncio.Event()

    async def create(self, owner: Owner, new: NewBatch) -> Batch:
        """Make a batch. Raises `TooManyBatchesError`."""
        batch = await self.book.create(owner, new)
        self._awake.set()
        return batch

    async def cancel(self, tenant: str, batch_id: str) -> Batch | None:
        """See `BatchBook.cancel`. Lines running in this process end at once."""
        batch = await self.book.cancel(tenant, batch_id)
        self._awake.set()
        return batch

    @asynccontextmanager
    async def working(self, answer: AnswerLine) -> AsyncIterator[None]:
        """Advance batches, with `answer` to answer their lines, while the context is open."""
        worker = LineWorker(
            self.queue,
            self.lines,
            answer,
            lambda: self.knobs.active,
            self._metrics,
            self._settings.batch_concurrency,
            self._awake.set,
            self._settings.batch_lease_seconds,
        )
        self._worker = worker
        async with AsyncExitStack() as stack:
            works: dict[str, Callable[[], Awaitable[object]]] = {
                "knobs": partial(self.knobs.follow, self._settings.artefact_poll_seconds),
                "expired files": self._sweep,
                "leases of lines": worker.keep,
                "lines": worker.run,
                "progress": self._lead,
            }
            for name, work in works.items():
                await stack.enter_async_context(background(work, f"batches: {name}"))
            yield
            await self.drain(0.0)

    async def drain(self, seconds: float) -> None:
        """Start nothing more; running lines have `seconds` before they are handed back."""
        worker, self._worker = self._worker, None
        if worker is not None and (left := await worker.drain(seconds)):
            log.warning("%d lines of batches did not end within %g s and are handed back", left, seconds)
        for step in list(self._steps.values()):
            step.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)

    async def show(self) -> None:
        """Update the gauges as far as the database can be reached."""
        self._metrics.running.set(0 if self._worker is None else self._worker.running)
        with suppress(SQLAlchemyError, OSError):
            waiting = await self.lines.waiting(self.book.now())
            self._metrics.waiting.set(waiting.lines)
            self._metrics.oldest.set(waiting.oldest_seconds)

    async def _lead(self) -> None:
        """Look at all open batches repeatedly."""
        away = False
        while True:
            self._awake.clear()
            try:
                under_way = await self.book.under_way()
                away = False
            except (SQLAlchemyError, OSError) as error:
                if not away:
                    log.warning("batches cannot be read (%s)", type(error).__name__)
                away = True
            else:
                self._go_on(under_way)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._awake.wait()

    def _go_on(self, under_way: list[tuple[Batch, bool]]) -> None:
        if self._worker is None:
            return
        going_on = {batch.batch_id for batch, _ in under_way if batch.status == "in_progress"}
        due = [batch for batch, waiting in under_way if self._keeper.is_due(batch, waiting)]
        ending = {batch.batch_id for batch, waiting in under_way if waiting and batch in due}
        self._worker.offer(
            [batch for batch, waiting in under_way if batch.status == "in_progress" and waiting and batch not in due],
            going_on - ending,
        )
        for batch in due:
            if batch.batch_id not in self._steps:
                self._steps[batch.batch_id] = once(self._step(batch), "batches: a step")

    async def _step(self, batch: Batch) -> None:
        try:
            if await self._keeper.lead(batch):
                self._awake.set()
        except (SQLAlchemyError, OSError) as error:
            log.warning("batch %s is continued later: %s", batch.batch_id, type(error).__name__)
        except Exception:
            log.exception("batch %s cannot go on", batch.batch_id)
        finally:
            self._steps.pop(batch.batch_id, None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                gone, days = await self.files.sweep(), self._settings.retain_days
                ended = 0 if days is None else await self.book.purge(self.book.now() - days * DAY_SECONDS)
                if gone or ended:
                    log.info("deleted what has expired: %d files, %d batches", gone, ended)
            except (SQLAlchemyError, OSError) as error:
                log.warning("expired files will be deleted later: %s", type(error).__name__)
