"""Writes answers to the database: those that arrive during a transaction share the next one."""

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError

from gateway.batches.line_book import LineAnswer, LineBook
from inference_core.io.background_tasks import once

log = logging.getLogger(__name__)

AWAY_SECONDS = 1.0


class AnswerWriter:
    """Stores answers; while the database is down it retries until the database is back."""

    def __init__(self, lines: LineBook) -> None:
        self._lines = lines
        self._waiting: list[tuple[LineAnswer, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def store(self, answer: LineAnswer) -> bool:
        """Wait until the answer is stored; return whether it is the line's visible one."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, stored))
        if self._writing is None or self._writing.done():
            self._writing = once(self._write(), "answers of batches")
        return await stored

    async def _write(self) -> None:
        while self._waiting:
            mine, self._waiting = self._waiting, []
            try:
                visible = await self._lines.answer([answer for answer, _ in mine])
            except (SQLAlchemyError, OSError) as error:
                log.warning("answers of batches wait for the database: %s", type(error).__name__)
                await asyncio.sleep(AWAY_SECONDS)
                # A cancelled waiter has handed its line back.
                self._waiting = [one for one in mine if not one[1].done()] + self._waiting
                continue
            except Exception as error:
                for _, stored in mine:
                    if not stored.done():
                        stored.set_exception(error)
                raise
            for (_, stored), seen in zip(mine, visible, strict=True):
                if not stored.done():
                    stored.set_result(seen)
