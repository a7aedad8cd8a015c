"""Counts requests that were refused before there was an answer: in metrics, in the log, and by minute in the database;
and writes one log line per finished request, if enabled: tier, duration, cost.

An answer that fails has a record; a refused request has none, and strangers may send any number of them. So what is
kept of them is bounded: by combination of key, status, code, limit and endpoint, whatever their number.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error, is_recorded
from gateway.base.inference_request import Caller
from gateway.base.logs import FIELDS
from gateway.inference.answer import Answer
from gateway.telemetry.families import CounterFamily
from gateway.telemetry.request_metrics import NO_NAME, OTHER, BoundedNames
from quality.records.record import Record
from quality.store.database import blames_data
from quality.store.queries import MINUTE, RefusalCount, RefusalKind, add_refused

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

request_log = logging.getLogger("aio.requests")


def log_request(answer: Answer, record: Record) -> None:
    """Write the line; no texts, and the key only by its pseudonym."""
    timings, trace = record.timings, answer.request.trace
    fields = {
        "request_id": record.request_id,
        **({} if trace is None else {"trace_id": f"{trace.trace_id:032x}"}),
        "api": record.api,
        "key": record.key_id,
        "tier": record.tier,
        "model": record.model,
        "status": record.status,
        "http_status": record.http_status,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cost_usd": record.cost_usd,
        "ttft_ms": None if timings.ttft_ms is None else round(timings.ttft_ms, 3),
        "e2e_ms": round(timings.e2e_ms, 3),
    }
    request_log.info("finished", extra={FIELDS: fields})


log = logging.getLogger("aio.refused")

# Combinations counted apart in a minute, lines of the log in a minute, and minutes kept while the database is away.
MOST_KINDS, MOST_LINES, MOST_MINUTES = 200, 20, 60
SAVE_SECONDS = 2.0
MOST_MESSAGE = 300


class RefusedMetrics:
    """`aio_refused_requests` by status and code, and in `private` by key and limit too, with bounded labels."""

    def __init__(self, registry: CollectorRegistry, private: CollectorRegistry) -> None:
        self._codes, self._keys, self._reasons = BoundedNames(), BoundedNames(), BoundedNames()
        self._all = CounterFamily(
            "aio_refused_requests", "Requests refused before there was an answer.", ["status", "code"]
        )
        self._of_keys = CounterFamily(
            "aio_key_refused_requests", "A key's refused requests; `reason`: which limit was reached, and whose.",
            ["key", "status", "code", "reason"],
        )  # fmt: skip
        registry.register(self._all)
        private.register(self._of_keys)

    def count(self, kind: RefusalKind) -> None:
        status, code = str(kind.status), self._codes.label(kind.code or None)
        self._all.add((status, code))
        reason = self._reasons.label(kind.reason or None)
        self._of_keys.add((self._keys.label(kind.key_id), status, code, reason))


class RefusedRequests:
    """The refused requests of one process. `keeps_messages`: whether what was answered may be stored, which may quote a
    few characters of the request."""

    def __init__(
        self, metrics: RefusedMetrics, *, keeps_messages: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._metrics, self._keeps_messages, self._clock = metrics, keeps_messages, clock
        self._minutes: dict[float, dict[RefusalKind, RefusalCount]] = {}
        self._line_minute, self._lines, self._unlogged = 0.0, set[RefusalKind](), 0

    def count(self, error: Exception, caller: Caller, path: str, request_id: str) -> None:
        """Count a failure that is answered with `error`, unless a record tells of it or the client has left.

        `path`: as the endpoint declares it, "" for none.
        """
        if is_recorded(error):
            return
        failure = as_api_error(error)
        if failure.status == CLIENT_CLOSED_REQUEST:
            return
        kind = RefusalKind(
            caller.key_id, failure.status, _storable(failure.body.code or "", 64), failure.limit[:256], path
        )
        self._metrics.count(kind)
        now = self._clock()
        self._log(kind, now, request_id)
        counted = self._counted(now - now % MINUTE, kind)
        counted.count += 1
        counted.last_at, counted.last_request_id = now, _storable(request_id, 128)
        counted.last_message = self._message(failure, caller)

    async def save(self, engine: "AsyncEngine") -> None:
        """Add what was counted since the last call to the stored counts. Raises what the database raises."""
        if not self._minutes:
            return
        minutes, self._minutes = self._minutes, {}
        try:
            await add_refused(
                engine, [(at, kind, count) for at, kinds in minutes.items() for kind, count in kinds.items()]
            )
        except BaseException as error:
            # What the database will never take would hold up all that comes later.
            if not (isinstance(error, Exception) and blames_data(error)):
                self._put_back(minutes)
            raise

    async def keep(self, engine: "AsyncEngine") -> None:
        """Save every `SAVE_SECONDS` until cancelled, and at last once more. While the database is away, the counts of
        the last hour are kept."""
        try:
            while True:
                await asyncio.sleep(SAVE_SECONDS)
                await self._try_to_save(engine)
        finally:
            await self._try_to_save(engine)

    async def _try_to_save(self, engine: "AsyncEngine") -> None:
        try:
            await self.save(engine)
        except (SQLAlchemyError, OSError) as error:
            log.debug("counts of refused requests cannot be stored yet: %s", error)

    def _counted(self, minute: float, kind: RefusalKind) -> RefusalCount:
        kinds = self._minutes.get(minute)
        if kinds is None:
            while len(self._minutes) >= MOST_MINUTES:
                del self._minutes[min(self._minutes)]
            kinds = self._minutes[minute] = {}
        if kind not in kinds and len(kinds) >= MOST_KINDS:
            kind = RefusalKind(OTHER, kind.status, OTHER, "", "")
        return kinds.setdefault(kind, RefusalCount())

    def _put_back(self, minutes: dict[float, dict[RefusalKind, RefusalCount]]) -> None:
        for minute, kinds in minutes.items():
            for kind, before in kinds.items():
                counted = self._counted(minute, kind)
                if not counted.count:
                    counted.last_at, counted.last_request_id = before.last_at, before.last_request_id
                    counted.last_message = before.last_message
                counted.count += before.count

    def _log(self, kind: RefusalKind, now: float, request_id: str) -> None:
        """One line per combination and minute, up to `MOST_LINES`; the next one says how many had none."""
        if now - self._line_minute >= MINUTE:
            self._line_minute, self._lines = now, set()
        if kind in self._lines or len(self._lines) >= MOST_LINES:
            self._unlogged += 1
            return
        self._lines.add(kind)
        unlogged, self._unlogged = self._unlogged, 0
        fields = {
            "request_id": request_id,
            "key": kind.key_id or NO_NAME,
            "http_status": kind.status,
            "code": kind.code or NO_NAME,
            **({"reason": kind.reason} if kind.reason else {}),
            "path": kind.path or NO_NAME,
            **({"more_before": unlogged} if unlogged else {}),
        }
        log.info("refused", extra={FIELDS: fields})

    def _message(self, failure: ApiError, caller: Caller) -> str | None:
        kept = self._keeps_messages and caller.consent.reuse
        return _storable(failure.body.message, MOST_MESSAGE) if kept else None


def _storable(text: str, most: int) -> str:
    """Return a beginning of `text` that every database takes."""
    return text[:most].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
