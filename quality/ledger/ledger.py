"""The ledger: accepts a record without waiting, makes it durable in a journal, and stores it in the database later.

The backlog is the durable records that are not in the database yet, with the journal segments that they need."""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_core.io.background_tasks import repeated
from quality.ledger.journal import (
    Committed,
    Journal,
    JournalFullError,
    Location,
    SegmentError,
    adopt_orphans,
    claim_folder,
    read_payload,
    read_payloads,
    recover,
)
from quality.records.record import Begun, Record, Recorded, decoded, encoded, is_begun
from quality.store.database import blames_data
from quality.store.queries import get_request, insert_records


class LedgerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start and health."""

    appended: int
    """Records taken."""
    adopted: int
    """Records found in journals of dead processes."""
    journaled: int
    """Appended records that are durable."""
    stored: int
    """Records in the database."""
    rejected: int
    """Records that the database will not take. They stay in the journal and are tried again at the next start."""
    waiting: int
    """Durable records that are not stored yet."""
    refused: int
    """Records that were not taken because the disk has stalled."""
    interrupted: int
    """Adopted records of requests that a dead process had started and not ended."""
    lost: int
    """Records that journals of dead processes can no longer give: unfinished writes and damage by the disk."""
    pending_bytes: int
    """Bytes in memory that wait for the disk."""
    journal_failures: int
    store_failures: int
    journal_lag_seconds: float
    """Age of the oldest record that is not durable."""
    store_lag_seconds: float
    """Age of the oldest record that is not stored."""
    journal_error: str | None
    """Why the last write failed; None while it works."""
    store_error: str | None
    """Why the last attempt to store failed; None while it works."""
    full: bool
    """Whether so many bytes wait for the disk that new requests are to be refused."""

    @property
    def suspended(self) -> str | None:
        """Say that the process must not die now, because records of answered requests are in its memory alone; None
        while each becomes durable at once. Without paths."""
        if self.journal_error is None and self.journal_lag_seconds <= _PATIENCE_S:
            return None
        why = "does not answer" if self.journal_error is None else "refuses writes"
        room = "; new requests are refused" if self.full else ""
        return (
            f"the disk {why}, durability is suspended: records of the last {self.journal_lag_seconds:.0f} s "
            f"({self.pending_bytes:,} bytes) wait in memory{room}"
        )

    @property
    def healthy(self) -> bool:
        """Whether records are accepted and none was lost; the database may be unavailable."""
        return self.journal_error is None and self.refused == 0


class Entry(NamedTuple):
    """A durable record on its way to the database."""

    request_id: str
    location: Location
    since: float
    """When it became durable, in monotonic seconds."""


class Backlog:
    """Durable records in the order of storing; about 300 bytes each, because the records themselves stay on disk."""

    def __init__(self) -> None:
        self._queue: deque[Entry] = deque()
        self._index: dict[str, Location] = {}
        self._needed: dict[Path, int] = {}

    def __len__(self) -> int:
        """The number of records yet to be stored, without rejected ones."""
        return len(self._queue)

    def add(self, entries: Iterable[Entry]) -> None:
        """Append records that have become durable."""
        for entry in entries:
            self._queue.append(entry)
            self._index[entry.request_id] = entry.location
            self.watch(entry.location.segment, 1)

    def watch(self, segment: Path, needed: int) -> None:
        """Note that `needed` more frames of `segment` must be kept; with 0 the segment only becomes deletable."""
        self._needed[segment] = self._needed.get(segment, 0) + needed

    def find(self, request_id: str) -> Location | None:
        """Return the location of a durable record that is not stored yet."""
        return self._index.get(request_id)

    def head(self, count: int) -> list[Entry]:
        """Return the `count` records to be stored next, or fewer."""
        return list(islice(self._queue, count))

    def stored(self, count: int) -> None:
        """Remove the first `count` records, which are now in the database."""
        for _ in range(count):
            entry = self._queue.popleft()
            if self._index.get(entry.request_id) == entry.location:
                del self._index[entry.request_id]
            self._needed[entry.location.segment] -= 1

    def reject_first(self) -> None:
        """Mark the first record as rejected by the database: it can still be found, and its segment stays."""
        self._queue.popleft()

    def deletable(self, growing: Collection[Path]) -> list[Path]:
        """Return the segments that are no longer needed, without those that are still `growing`."""
        return [segment for segment, needed in self._needed.items() if needed == 0 and segment not in growing]

    def forget(self, segments: Iterable[Path]) -> None:
        """Forget deleted segments."""
        for segment in segments:
            del self._needed[segment]

    def needs_folder(self, folder: Path) -> bool:
        """Return whether a segment in `folder` has not been deleted."""
        return any(segment.parent == folder for segment in self._needed)


logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.05
# A batch grows by one record for this many that wait, up to a multiple of the usual size.
_BEHIND, _MOST_BATCHES = 16, 8
# Fewer records than a usual batch wait this long after the last one: a transaction costs more than a dozen of them.
_GATHER_S = 0.05
# So many of the newest records are kept until they are stored, unless they are larger: reading one again takes as long
# as writing it did.
_FRESH, _FRESH_BYTES = 256, 1 << 15
# The disk counts as stalled if a record is not durable after this time.
_PATIENCE_S = 1.0
# And a process that ends leaves it after this time.
_CLOSE_S = 5.0


class LedgerClosedError(RuntimeError):
    """The ledger is not running: `start` was not awaited, or `close` was called."""


class Ledger:
    """Write-behind store of `Recorded` requests (docs/architecture.md).

    A record is *recorded* once its journal frame is fsynced; from then on `find` returns it, whatever happens to the
    process or the database. A background task stores recorded requests in order, each once, and deletes journal
    segments whose records are all stored. While the database is away the journal grows, and `status` gives the reason.

    While the disk stalls, records wait in memory: at most `max_pending_bytes`, of which a half is for new requests
    (`is_full`) and the other for the answers under way by then.

    Every ledger writes its own folder under `journal_dir` and adopts those of dead processes at start: any number of
    processes may share `journal_dir` and the database. All methods belong to one event loop.
    """

    def __init__(
        self,
        journal_dir: Path,
        engine: AsyncEngine,
        *,
        commit_interval: float = 0.02,
        segment_bytes: int = 16 << 20,
        max_pending_bytes: int = 128 << 20,
        batch_records: int = 64,
        max_retry_seconds: float = 5.0,
    ) -> None:
        self._journal_dir, self._engine = journal_dir, engine
        self._commit_interval, self._segment_bytes = commit_interval, segment_bytes
        self._max_pending_bytes, self._batch_records = max_pending_bytes, batch_records
        self._max_retry_seconds = max_retry_seconds
        self._running = self._stalled = False

        self._unjournaled: dict[str, float] = {}  # request id → monotonic seconds of its append
        self._begun: dict[str, Location | None] = {}  # request id → its frame, None until that is durable
        self._fresh: dict[str, Recorded] = {}
        self._backlog = Backlog()
        self._growing: frozenset[Path] = frozenset()
        self._rotations = self._waited_for = 0
        self._appended = self._adopted = self._journaled = 0
        self._stored = self._rejected = self._refused = self._store_failures = 0
        self._interrupted = self._lost = 0
        self._store_error: str | None = None

        self._work, self._progress = asyncio.Event(), asyncio.Event()
        self._last_batch = -math.inf

    async def start(self) -> None:
        """Claim a journal folder, recover the journals of dead processes, and start to record and store.

        When this returns, recovered records can be found, and they are stored first; the database need not be up.
        """
        self._loop = asyncio.get_running_loop()
        self._folder = await asyncio.to_thread(claim_folder, self._journal_dir)
        self._orphans = await asyncio.to_thread(adopt_orphans, self._journal_dir)
        await asyncio.to_thread(self._recover)
        self._journal = Journal(
            self._folder.path,
            self._commit_from_thread,
            commit_interval=self._commit_interval,
            segment_bytes=self._segment_bytes,
            max_pending_bytes=self._max_pending_bytes,
        )
        self._journal.start()
        self._running = True
        self._work.set()
        self._storing = repeated(self._store_forever, "ledger")

    def begin(self, record: Record) -> None:
        """Note a request whose answer begins: if this process dies before `append` gets the request's own record, the
        next one stores `record`. Never waits and does no I/O; a stalled disk may leave the request out.

        Raises:
            LedgerClosedError: the ledger is not running.
        """
        self._check_running()
        if record.request_id not in self._begun:
            with contextlib.suppress(JournalFullError):
                self._journal.append(record.request_id, encoded(Begun(record)))
                self._begun[record.request_id] = None

    def append(self, record: Recorded) -> None:
        """Append `record`; never waits and does no I/O.

        If the disk has stalled and `max_pending_bytes` wait for it, the record is refused: it is logged and counted,
        and `status().healthy` becomes False.

        Raises:
            LedgerClosedError: the ledger is not running.
        """
        self._check_running()
        now = time.monotonic()
        self._log_stall(now)
        payload = encoded(record)
        try:
            self._journal.append(record.request_id, payload)
        except JournalFullError as error:
            self._refused += 1
            logger.error("request %s is not recorded: %s", record.request_id, error)
            return
        self._appended += 1
        if len(payload) <= _FRESH_BYTES and len(self._fresh) < _FRESH:
            self._fresh.setdefault(record.request_id, record)
        self._unjournaled[record.request_id] = now

    async def recorded(self, request_id: str) -> None:
        """Wait until the appended record is durable; return at once if no record with that id is pending."""
        while request_id in self._unjournaled:
            await self._progress.wait()

    async def find(self, request_id: str) -> Recorded | None:
        """Return a durable record, waiting for it if it is pending; None if there is none.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, OSError: it is not in the journal and the database is unavailable.
        """
        if request_id in self._unjournaled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self.recorded(request_id)
        return self.find_waiting(request_id) or await get_request(self._engine, request_id)

    def find_waiting(self, request_id: str) -> Recorded | None:
        """Return the record if it is durable but not stored yet."""
        location = self._backlog.find(request_id)
        # Not in a thread, so that nothing deletes the segment between the two lines.
        return None if location is None else decoded(read_payload(location))

    async def flush(self) -> None:
        """Wait, without a time limit, until everything appended so far is stored and deleted from the journal.

        Raises:
            LedgerClosedError: the ledger is not running.
        """
        self._check_running()
        target = self._appended + self._adopted
        rotation = self._journal.rotate()
        self._waited_for += 1
        try:
            self._work.set()
            while self._stored + self._rejected < target or self._rotations < rotation or self._deletable():
                await self._progress.wait()
        finally:
            self._waited_for -= 1

    async def close(self, *, store_seconds: float = 5.0) -> None:
        """Make all records durable and store for `store_seconds` at most; the next process goes on. Idempotent."""
        if not self._running:
            return
        self._running = False
        stalled = False
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._journal.close)
        except TimeoutError:
            stalled = True
            logger.error("the journal's disk does not answer; %d requests are not recorded", len(self._unjournaled))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(store_seconds):
                while self._backlog or self._deletable():
                    await self._progress.wait()
        self._storing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._storing
        for folder in (self._folder, *self._orphans):
            # A stalled disk may still write what it was given.
            if stalled or self._backlog.needs_folder(folder.path):
                folder.release()
            else:
                await asyncio.to_thread(folder.remove)

    def status(self) -> LedgerStatus:
        """Counters and health, without I/O. Only after `start`."""
        now = time.monotonic()
        oldest = self._backlog.head(1)
        return LedgerStatus(
            appended=self._appended,
            adopted=self._adopted,
            journaled=self._journaled,
            stored=self._stored,
            rejected=self._rejected,
            waiting=len(self._backlog),
            refused=self._refused,
            interrupted=self._interrupted,
            lost=self._lost,
            pending_bytes=self._journal.pending_bytes,
            journal_failures=self._journal.failures,
            store_failures=self._store_failures,
            journal_lag_seconds=self._journal_lag(now),
            store_lag_seconds=now - oldest[0].since if oldest else 0.0,
            journal_error=self._journal.failure,
            store_error=self._store_error,
            full=self.is_full(),
        )

    def is_full(self) -> bool:
        """Whether the records that wait for the disk leave no room for those of new requests. Only after `start`."""
        return self._journal.pending_bytes > self._max_pending_bytes // 2

    def _journal_lag(self, now: float) -> float:
        return now - next(iter(self._unjournaled.values()), now)

    def _log_stall(self, now: float) -> None:
        """A line when a stall of the disk is first seen, and one when it has ended."""
        if (self._journal_lag(now) > _PATIENCE_S) != self._stalled:
            self._stalled = not self._stalled
            if self._stalled:
                logger.warning("the disk of %s does not answer: records wait in memory", self._journal_dir)
            else:
                logger.info("the disk of %s answers again: records are durable", self._journal_dir)

    def _check_running(self) -> None:
        if not self._running:
            raise LedgerClosedError("the ledger is not running: await start() first, and use it before close()")

    def _recover(self) -> None:
        for orphan in self._orphans:
            begun: dict[str, Location] = {}
            ended: dict[str, Location] = {}
            for segment in orphan.segments():
                for location, payload in self._read_segment(segment):
                    try:
                        request_id = decoded(payload).request_id
                    except msgspec.DecodeError:
                        self._adopted += 1
                        self._rejected += 1
                        self._backlog.watch(segment, 1)
                        logger.exception("a record in %s is not one of this version; the file is kept", segment)
                    else:
                        (begun if is_begun(payload) else ended).setdefault(request_id, location)
            interrupted = {request_id: location for request_id, location in begun.items() if request_id not in ended}
            if interrupted:
                logger.warning(
                    "%d requests were under way when the process of %s ended: they are recorded as interrupted, at the "
                    "most that they may have cost",
                    *(len(interrupted), orphan.path),
                )
            now = time.monotonic()
            adopted = {**ended, **interrupted}
            self._backlog.add(Entry(request_id, location, now) for request_id, location in adopted.items())
            self._adopted += len(adopted)
            self._interrupted += len(interrupted)

    def _read_segment(self, segment: Path) -> list[tuple[Location, bytes]]:
        """Return the whole frames of a dead process's segment, and say what of it is lost."""
        frames, unreadable_bytes, lost = recover(segment)
        if unreadable_bytes:
            logger.warning(
                "%d records of %s are lost: %d bytes cannot be read, because a write was not finished or the disk "
                "changed them; the %d other records are replayed",
                *(lost, segment, unreadable_bytes, len(frames)),
            )
        self._lost += lost
        self._backlog.watch(segment, 0)
        return frames

    def _commit_from_thread(self, committed: Committed) -> None:
        self._loop.call_soon_threadsafe(self._committed, committed)

    def _committed(self, committed: Committed) -> None:
        now = time.monotonic()
        ended = [Entry(*frame, now) for frame in committed.frames if not self._is_beginning(*frame)]
        for request_id, _, _ in ended:
            self._unjournaled.pop(request_id, None)
            if (begun := self._begun.pop(request_id, None)) is not None:
                self._backlog.watch(begun.segment, -1)
        self._backlog.add(ended)
        self._journaled += len(ended)
        self._log_stall(now)
        self._growing = committed.growing
        self._rotations = committed.rotations
        self._store_soon()
        self._announce()

    def _is_beginning(self, request_id: str, location: Location) -> bool:
        """Return whether this durable frame says that a request has started, which comes before its record; its segment
        is then kept until the request has ended."""
        if self._begun.get(request_id, location) is not None:
            return False
        self._begun[request_id] = location
        self._backlog.watch(location.segment, 1)
        return True

    def _store_soon(self) -> None:
        """Have the records that wait stored, at once or a little later, together with others."""
        rest = self._last_batch + _GATHER_S - time.monotonic()
        if rest <= 0 or len(self._backlog) >= self._batch_records or self._waited_for or not self._running:
            self._work.set()
        else:
            self._loop.call_later(rest, self._work.set)

    async def _store_forever(self) -> None:
        retry = _RETRY_FIRST_S
        while True:
            await self._work.wait()
            self._work.clear()
            if batch := self._backlog.head(self._batch_size()):
                try:
                    await self._store(batch)
                except Exception as error:
                    # On any error records are still accepted, and the batch stays in the backlog.
                    self._store_failed(error)
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, self._max_retry_seconds)
                    self._work.set()
                else:
                    self._store_error = None
                    self._last_batch = time.monotonic()
                    retry = _RETRY_FIRST_S
                    if self._backlog:
                        self._store_soon()
            await self._delete_stored()
            self._announce()

    def _batch_size(self) -> int:
        """Return a small size, because storing a batch blocks the event loop, that grows with the backlog: each batch
        costs a dozen turns of the loop and waiting records use memory, so a busy process must be able to catch up."""
        return min(self._batch_records + len(self._backlog) // _BEHIND, _MOST_BATCHES * self._batch_records)

    def _store_failed(self, error: Exception) -> None:
        self._store_failures += 1
        if self._store_error is None:
            logger.warning("the database takes no records, the journal keeps them: %r", error)
        self._store_error = repr(error)

    async def _store(self, batch: list[Entry]) -> None:
        """Store `batch`, the head of the backlog; if the database rejects a record, store the others one by one."""
        try:
            await self._insert(batch)
        except Exception as error:
            if not (isinstance(error, SegmentError) or blames_data(error)):
                raise
            if len(batch) > 1:
                for entry in batch:
                    await self._store([entry])
                return
            logger.exception("the database rejects request %s; its journal file is kept", batch[0].request_id)
            self._backlog.reject_first()
            self._rejected += 1
        else:
            self._backlog.stored(len(batch))
            self._stored += len(batch)
        for entry in batch:
            self._fresh.pop(entry.request_id, None)

    async def _insert(self, batch: list[Entry]) -> None:
        fresh = [self._fresh.get(entry.request_id) for entry in batch]
        unknown = [entry for entry, record in zip(batch, fresh, strict=True) if record is None]
        read = iter(await asyncio.to_thread(self._read, unknown) if unknown else ())
        records = [next(read) if record is None else record for record in fresh]
        async with self._engine.begin() as connection:
            await insert_records(connection, records)

    def _read(self, batch: list[Entry]) -> list[Recorded]:
        return [decoded(payload) for payload in read_payloads(entry.location for entry in batch)]

    def _deletable(self) -> list[Path]:
        return self._backlog.deletable(self._growing)

    async def _delete_stored(self) -> None:
        """Delete segments and adopted folders that are no longer needed; in a thread, because disks may stall."""
        segments = self._deletable()
        try:
            if segments:
                await asyncio.to_thread(_unlink, segments)
                self._backlog.forget(segments)
            for orphan in [orphan for orphan in self._orphans if not self._backlog.needs_folder(orphan.path)]:
                self._orphans.remove(orphan)
                await asyncio.to_thread(orphan.remove)
        except OSError as error:
            logger.warning("could not delete what the journal no longer needs: %s", error)

    def _announce(self) -> None:
        """Wake all waiting calls; each checks its own condition again."""
        self._progress.set()
        self._progress = asyncio.Event()


def _unlink(segments: list[Path]) -> None:
    for segment in segments:
        segment.unlink(missing_ok=True)
