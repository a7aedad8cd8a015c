"""A database that is away for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


@contextmanager
def outage(engine: AsyncEngine) -> Iterator[None]:
    """A database that refuses every transaction, and is back afterwards."""

    def refuse(_: object) -> None:
        raise OSError("the database does not answer")

    event.listen(engine.sync_engine, "begin", refuse)
    yield
    event.remove(engine.sync_engine, "begin", refuse)
