"""The jobs of a running gateway: files and batches, advanced step by step and kept within their limits.

The keeper advances batches from one status to the next: it reads the input and writes the output files.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.knobs import KnobFile
from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background
from gateway.batches.batch import (
    CANCELLED,
    EXPIRED,
    Batch,
    BatchKnobs,
    Ending,
    InputError,
    InputLine,
    InputRefusedError,
    NewBatch,
    Status,
    checked_lines,
    error_line,
)
from gateway.batches.batch_book import BatchBook, LineBook
from gateway.batches.file_store import DAY_SECONDS, FileStore, FileWriter, Owner
from gateway.batches.job_queue import DatabaseQueue, JobQueue, QueueUnavailableError
from gateway.batches.line_worker import AnswerLine, LineWorker
from gateway.edge.asgi import HttpRequest
from gateway.telemetry.families import JobMetrics
from inference_core.io.background_tasks import once

log = logging.getLogger(__name__)

_AT_ONCE = 500


class LeaseLostError(RuntimeError):
    """The batch has advanced, or belongs to another process."""


class BatchKeeper:
    """Advances batches; a lease on the batch's row allows one keeper at a time. A step left unfinished by a dead keeper
    is repeated. `line_bytes`: most bytes of an input line."""

    def __init__(
        self,
        engine: AsyncEngine,
        book: BatchBook,
        lines: LineBook,
        files: FileStore,
        queue: JobQueue,
        line_bytes: int,
    ) -> None:
        self._engine, self._book, self._lines, self._files = engine, book, lines, files
        self._queue, self._line_bytes = queue, line_bytes

    def is_due(self, batch: Batch, waiting: bool) -> bool:
        """Return whether there is a step to take. `waiting`: some of its lines wait for an answer."""
        return batch.status != "in_progress" or not waiting or self._book.now() >= batch.expires_at

    async def lead(self, batch: Batch) -> bool:
        """Take the next step of a due batch; return whether this keeper took it."""
        if not await self._book.claim(batch):
            return False
        try:
            if batch.status == "validating":
                await self._read_input(batch)
            else:
                await self._end(batch)
        except LeaseLostError:
            log.info("batch %s has moved on", batch.batch_id)
        finally:
            await self._book.release(batch)
        return True

    async def _read_input(self, batch: Batch) -> None:
        await self._lines.clear(batch.batch_id)
        total = 0
        held: list[InputLine] = []
        try:
            if await self._files.find(batch.tenant, batch.input_file_id) is None:
                gone = InputError(code="file_not_found", message="The input file is gone.", param="input_file_id")
                raise InputRefusedError([gone])
            content = self._files.content(batch.input_file_id)
            async for line in checked_lines(content, batch.endpoint, self._line_bytes):
                held.append(line)
                total += 1
                if len(held) == _AT_ONCE:
                    await self._add(batch, held)
                    held = []
        except InputRefusedError as error:
            await self._book.refuse(batch, error.errors)
            await self._lines.clear(batch.batch_id)
            log.info("batch %s failed: %d errors in its input", batch.batch_id, len(error.errors))
            return
        await self._add(batch, held)
        await self._book.begin(batch, total)
        log.info("batch %s is in progress: %d lines", batch.batch_id, total)

    async def _add(self, batch: Batch, lines: list[InputLine]) -> None:
        await self._held(batch, "validating")
        if lines:
            await self._lines.add(batch.batch_id, lines)

    async def _held(self, batch: Batch, status: Status) -> None:
        if not await self._book.renew(batch, status):
            raise LeaseLostError

    async def _end(self, batch: Batch) -> None:
        """Close its lines and write them to files, which become visible together with the batch's end."""
        status = batch.status
        if status == "in_progress":
            if not await self._book.finalize(batch):
                raise LeaseLostError
            status = "finalizing"
        await self._lines.close(batch.batch_id)
        owner = Owner(batch.tenant, batch.key_id)
        async with self._files.begin(owner) as output, self._files.begin(owner) as errors:
            unanswered = await self._write(batch, status, output, errors)
            ending: Ending = "cancelled" if status == "cancelling" else "expired" if unanswered else "completed"
            async with self._engine.begin() as connection:
                files = {}
                for column, writer, name in (
                    ("output_file_id", output, "output"), ("error_file_id", errors, "error")
                ):  # fmt: skip
                    if writer.size:
                        filename = f"{batch.batch_id}_{name}.jsonl"
                        await writer.finish_in(connection, "batch_output", filename, batch.output_seconds)
                        files[column] = writer.file_id
                if not await self._book.end(connection, batch, status, ending, files):
                    raise LeaseLostError
        with suppress(QueueUnavailableError):
            await self._queue.forget(batch.batch_id)
        log.info("batch %s is %s: %d lines unanswered", batch.batch_id, ending, unanswered)

    async def _write(self, batch: Batch, status: Status, output: FileWriter, errors: FileWriter) -> int:
        """Write all lines to the two files; return how many had no answer."""
        error = CANCELLED if status == "cancelling" else EXPIRED
        unanswered = after = 0
        while rows := await self._lines.ended(batch.batch_id, after, _AT_ONCE):
            await self._held(batch, status)
            for row in rows:
                unanswered += row.text is None
                text = error_line(row.custom_id, error) if row.text is None else row.text
                await (output if row.status == "done" else errors).write(text.encode() + b"\n")
            after = rows[-1].number
        return unanswered


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


JOBS = "jobs"
"""The key of the app's state."""


def jobs_of(request: HttpRequest) -> Jobs:
    jobs: Jobs = request.app.state[JOBS]
    return jobs
