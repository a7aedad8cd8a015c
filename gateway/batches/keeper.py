"""The keeper advances batches from one status to the next: it reads the input and writes the output files."""

import logging
from contextlib import suppress

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.batches.batch import Batch, Ending, Status
from gateway.batches.batch_book import BatchBook
from gateway.batches.batch_input import InputError, InputLine, InputRefusedError, checked_lines
from gateway.batches.file_store import FileStore, FileWriter, Owner
from gateway.batches.job_queue import JobQueue, QueueUnavailableError
from gateway.batches.line_book import EndedLine, LineBook
from gateway.batches.output_lines import CANCELLED, EXPIRED, error_line

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
                await _file_of(row, output, errors).write(text.encode() + b"\n")
            after = rows[-1].number
        return unanswered


def _file_of(row: EndedLine, output: FileWriter, errors: FileWriter) -> FileWriter:
    return output if row.status == "done" else errors
