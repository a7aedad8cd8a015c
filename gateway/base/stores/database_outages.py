"""Outages of the database: a line in the log when one begins and one when it ends, not one by each of its users."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.logs.log_format import OF_OUTAGE
from quality.store.database import away_reason, is_away

log = logging.getLogger(__name__)


class DatabaseOutages:
    """Watches an engine of PostgreSQL, whose server may be away. SQLite's files are not watched: what fails there, such
    as a lock or a full disk, fails one statement.

    The first error of an outage is logged; it and all others are marked, so that further lines about them are left out
    of the log (`log_format.OF_OUTAGE`). An outage ends with the next connection that works.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._name = engine.url.render_as_string()
        self._since: float | None = None
        if engine.dialect.name == "postgresql":
            # Before a connection is made, lost, and given to somebody after it has been tested.
            event.listen(engine.sync_engine, "do_connect", self._connect)
            event.listen(engine.sync_engine, "handle_error", self._lost)
            event.listen(engine.sync_engine, "checkout", self._works)
            # Of this there is no event where the server hangs.
            dialect: Any = engine.dialect
            dialect.do_ping = partial(self._ping, dialect.do_ping)

    def note(self, error: Exception) -> None:
        """Note an error of the database; one that does not say that it is away changes nothing."""
        if not is_away(error):
            return
        if self._since is None:
            self._since = time.monotonic()
            log.warning(
                "the database %s is away (%s): requests are served, records wait in the journal; until it is back its"
                " errors are logged at level debug only",
                self._name,
                away_reason(error),
            )
        # After the line, which would be left out as well; some built-in errors take no attributes.
        with suppress(AttributeError):
            setattr(error, OF_OUTAGE, True)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the error with which the block ends: of work on a connection that is not of the engine."""
        try:
            yield
        except Exception as error:
            self.note(error)
            raise

    def _connect(self, dialect: Any, _record: object, arguments: list[Any], named: dict[str, Any]) -> Any:
        with self.noted():
            return dialect.connect(*arguments, **named)

    def _ping(self, ping: Callable[[Any], bool], connection: Any) -> bool:
        try:
            return ping(connection)
        except OSError as error:
            self.note(error)
            raise

    def _lost(self, context: ExceptionContext) -> None:
        if context.is_disconnect:
            for error in (context.sqlalchemy_exception, context.original_exception):
                if isinstance(error, Exception):
                    self.note(error)

    def _works(self, *_connection: object) -> None:
        if self._since is not None:
            log.info("the database is back after %.1f s", time.monotonic() - self._since)
            self._since = None
