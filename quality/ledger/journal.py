"""The append-only journal: one thread writes, another fsyncs many payloads at once."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from quality.ledger.journal_files import SEGMENT_SUFFIX, Location, SegmentWriter

logger = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.05, 2.0
_CLOSING_TRIES = 3
# Payloads appended within this time are written together, because waking a thread costs more than one frame.
_GATHER_S = 0.002


class JournalFullError(RuntimeError):
    """The disk has stalled and the buffer of waiting payloads is full; this payload was not accepted."""


class Committed(NamedTuple):
    """What one fsync made durable, in the order of appending.

    `growing`: segments that may be reported again; all others are complete. `rotations`: the number completed.
    """

    frames: list[tuple[str, Location]]
    growing: frozenset[Path]
    rotations: int


class _Frame(NamedTuple):
    """Queued: a payload to be made durable."""

    key: str
    payload: bytes


class _Rotate:
    """Queued: complete the segment."""


class _Stop:
    """Queued: commit what came before and end."""


class _Synced(NamedTuple):
    """Queued by the syncing thread: its fsync succeeded or failed."""

    error: OSError | None


_Item = _Frame | _Rotate | _Stop | _Synced


class _Written(NamedTuple):
    frame: _Frame
    location: Location


class Journal:
    """Owner of the segments in `folder`; no other process may write there.

    One thread writes what is appended within two milliseconds, so that it survives a kill of the process even on a slow
    disk. A second thread fsyncs: an append to an idle journal is synced at once; a busy journal starts at most one
    fsync per `commit_interval` seconds, for everything written. `on_commit` is called from the writing thread.

    When the disk fails, nothing is dropped: payloads that are not durable are kept and written again (to a fresh
    segment after a failed fsync), and `failure` gives the reason. `max_pending_bytes` bounds the waiting payloads;
    beyond it `append` raises, so that no loss is silent.
    """

    def __init__(
        self,
        folder: Path,
        on_commit: Callable[[Committed], None],
        *,
        commit_interval: float = 0.02,
        segment_bytes: int = 16 << 20,
        max_pending_bytes: int = 64 << 20,
    ) -> None:
        self.failure: str | None = None
        self.failures = 0
        self._folder = folder
        self._on_commit = on_commit
        self._commit_interval = commit_interval
        self._segment_bytes = segment_bytes
        self._max_pending_bytes = max_pending_bytes
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._sync_jobs: SimpleQueue[list[SegmentWriter] | None] = SimpleQueue()
        # Two counters with one writer each, because += is not atomic across threads.
        self._appended_bytes = 0
        self._committed_bytes = 0
        self._rotations_asked = 0
        self._lost = 0
        self._threads = [
            threading.Thread(target=target, name=f"journal {name}", daemon=True)
            for name, target in (("writer", self._run), ("syncer", self._sync_forever))
        ]

        # The fields below belong to the writing thread.
        self._waiting: list[_Frame] = []
        self._written: list[_Written] = []
        self._syncing: list[_Written] | None = None
        self._segment: SegmentWriter | None = None
        self._unsynced: list[SegmentWriter] = []  # those with unreported frames, and the current one
        self._segments_opened = 0
        self._stop = False
        self._next_sync = 0.0
        self._next_write = 0.0
        self._retry = _RETRY_FIRST_S
        self._closing_tries = _CLOSING_TRIES
        self._rotations_wanted = self._rotations_done = self._rotations_syncing = self._rotations_reported = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self._appended_bytes - self._committed_bytes

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def append(self, key: str, payload: bytes) -> None:
        """Append `payload`; `on_commit` names its `key` once it is durable. Never waits. Only one thread may append.

        Raises:
            JournalFullError: more than `max_pending_bytes` wait for the disk; the payload was not accepted.
        """
        if self.pending_bytes + len(payload) > self._max_pending_bytes:
            raise JournalFullError(
                f"{self.pending_bytes} bytes already wait for the disk of {self._folder} "
                f"(allowed: {self._max_pending_bytes}): {self.failure or 'it is too slow'}"
            )
        self._appended_bytes += len(payload)
        self._queue.put(_Frame(key, payload))

    def rotate(self) -> int:
        """Request completion of the current segment; it is complete when `Committed.rotations` reaches the returned
        number."""
        self._rotations_asked += 1
        self._queue.put(_Rotate())
        return self._rotations_asked

    def close(self) -> int:
        """Commit everything and stop; blocks. Return the number of payloads lost because the disk refused them."""
        self._queue.put(_Stop())
        for thread in self._threads:
            thread.join()
        return self._lost

    def _run(self) -> None:
        while not (self._stop and self._is_idle()):
            for item in self._take():
                self._receive(item)
            self._write()
            self._begin_sync()
        self._sync_jobs.put(None)
        for segment in self._unsynced:
            segment.close()
        self._on_commit(Committed([], frozenset(), self._rotations_done))

    def _is_idle(self) -> bool:
        return not self._waiting and not self._written and self._syncing is None

    def _take(self) -> list[_Item]:
        """Return everything queued; wait for something unless other work is due."""
        items: list[_Item] = []
        try:
            items.append(self._queue.get(timeout=self._pause()))
            if isinstance(items[0], _Frame):
                time.sleep(_GATHER_S)
            while True:
                items.append(self._queue.get_nowait())
        except Empty:
            return items

    def _pause(self) -> float | None:
        """Return the seconds until work is due; None if none is scheduled."""
        if self._waiting:
            return max(0.0, self._next_write - time.monotonic())
        if self._written and self._syncing is None:
            return max(0.0, self._next_sync - time.monotonic())
        return 0.0 if self._stop and self._is_idle() else None

    def _receive(self, item: _Item) -> None:
        match item:
            case _Frame():
                self._waiting.append(item)
            case _Rotate():
                self._rotations_wanted += 1
            case _Stop():
                self._stop = True
                self._next_write = self._next_sync = 0.0
            case _Synced(error):
                if error is None:
                    self._report()
                else:
                    self._take_back(error)

    def _write(self) -> None:
        if self._waiting and time.monotonic() >= self._next_write:
            try:
                segment = self._segment or self._open_segment()
                locations = segment.write([frame.payload for frame in self._waiting])
            except OSError as error:
                self._refused(error)
                return
            self._written += map(_Written, self._waiting, locations)
            self._waiting.clear()
            if segment.size >= self._segment_bytes:
                self._segment = None
        if self._rotations_wanted > self._rotations_done and not self._waiting:
            self._segment = None
            self._rotations_done = self._rotations_wanted

    def _open_segment(self) -> SegmentWriter:
        self._segments_opened += 1
        self._segment = SegmentWriter(self._folder / f"{self._segments_opened:08d}{SEGMENT_SUFFIX}")
        self._unsynced.append(self._segment)
        return self._segment

    def _begin_sync(self) -> None:
        rotated = self._rotations_done > self._rotations_reported
        if self._syncing is not None or not (self._written or rotated):
            return
        if time.monotonic() < self._next_sync and not rotated:
            return
        self._next_sync = 0.0 if self._stop else time.monotonic() + self._commit_interval
        self._syncing, self._written = self._written, []
        self._rotations_syncing = self._rotations_done
        self._sync_jobs.put(list(self._unsynced))

    def _sync_forever(self) -> None:
        while (segments := self._sync_jobs.get()) is not None:
            try:
                for segment in segments:
                    segment.sync()
            except OSError as error:
                self._queue.put(_Synced(error))
            else:
                self._queue.put(_Synced(None))

    def _report(self) -> None:
        """After a successful sync, close complete segments and report what is durable."""
        done, self._syncing = self._syncing or [], None
        self.failure = None
        self._retry = _RETRY_FIRST_S
        self._committed_bytes += sum(len(written.frame.payload) for written in done)
        self._rotations_reported = self._rotations_syncing
        unreported = {written.location.segment for written in self._written}
        for segment in [s for s in self._unsynced if s is not self._segment and s.path not in unreported]:
            segment.close()
            self._unsynced.remove(segment)
        frames = [(written.frame.key, written.location) for written in done]
        growing = frozenset(segment.path for segment in self._unsynced)
        self._on_commit(Committed(frames, growing, self._rotations_reported))

    def _take_back(self, error: OSError) -> None:
        """After a failed sync, queue every unreported frame again."""
        self._waiting[:0] = [written.frame for written in (self._syncing or []) + self._written]
        self._syncing, self._written = None, []
        for segment in self._unsynced:
            segment.abandon()
        self._unsynced.clear()
        self._segment = None
        self._refused(error)

    def _refused(self, error: OSError) -> None:
        self.failures += 1
        self.failure = f"writing the journal in {self._folder} failed: {error}"
        logger.error("%s", self.failure)
        if not self._stop:
            self._next_write = time.monotonic() + self._retry
            self._retry = min(2 * self._retry, _RETRY_LAST_S)
            return
        self._closing_tries -= 1
        if self._closing_tries == 0:
            self._lost += len(self._waiting)
            self._waiting.clear()
            logger.critical("the journal closes without %d records", self._lost)
