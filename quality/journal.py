"""The append-only journal: a thread that writes and fsyncs whatever was appended, many payloads per fsync."""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from quality.segment import HEADER_BYTES, SEGMENT_SUFFIX, Location, frame

logger = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.05, 2.0


class JournalFullError(RuntimeError):
    """The disk has stalled and memory for what waits for it is used up; this payload was not taken."""


class Committed(NamedTuple):
    """What one fsync made durable, in the order of appending.

    `active` is the segment that may still grow; every other one is complete. `rotations`: how many were done so far.
    """

    frames: list[tuple[str, Location]]
    active: Path | None
    rotations: int


class _Frame(NamedTuple):
    key: str
    payload: bytes


class _Rotate:
    """Queued: close the segment."""


class _Stop:
    """Queued: commit what came before and end."""


_Item = _Frame | _Rotate | _Stop


class Journal:
    """Owner of the segments in `folder`, which must not be written by anybody else.

    An idle journal commits an append at once; a busy one starts a commit every `commit_interval` seconds, so that
    the disk sees at most that many fsyncs, each for everything pending. `on_commit` is called from the thread.

    When the disk refuses, nothing is dropped: the batch is kept, tried again in a fresh segment (the pages of a
    failed fsync cannot be trusted) and `failure` says why. What waits meanwhile is bounded by `max_pending_bytes`;
    beyond it `append` raises, so that a loss is never silent.
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
        # Two counters with one writer each, because += is not atomic between threads.
        self._appended_bytes = 0
        self._committed_bytes = 0
        self._rotations_asked = 0
        self._rotations_done = 0
        self._stopping = threading.Event()
        self._lost = 0
        self._segment: Path | None = None
        self._segment_number = 0
        self._fd = -1
        self._offset = 0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self._appended_bytes - self._committed_bytes

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def append(self, key: str, payload: bytes) -> None:
        """Take `payload`; `on_commit` names its `key` once it is durable. Never waits. One thread may append.

        Raises:
            JournalFullError: more than `max_pending_bytes` wait for the disk; the payload was not taken.
        """
        if self.pending_bytes + len(payload) > self._max_pending_bytes:
            raise JournalFullError(
                f"{self.pending_bytes} bytes already wait for the disk of {self._folder} "
                f"(allowed: {self._max_pending_bytes}): {self.failure or 'it is too slow'}"
            )
        self._appended_bytes += len(payload)
        self._queue.put(_Frame(key, payload))

    def rotate(self) -> int:
        """Ask for the current segment to be completed; done when `Committed.rotations` reaches the returned number."""
        self._rotations_asked += 1
        self._queue.put(_Rotate())
        return self._rotations_asked

    def close(self) -> int:
        """Commit everything and stop; blocks. Returns how many payloads are lost because the disk refused them."""
        self._stopping.set()
        self._queue.put(_Stop())
        self._thread.join()
        return self._lost

    def _run(self) -> None:
        stop = False
        next_commit = 0.0
        while not stop:
            first = self._queue.get()
            self._stopping.wait(next_commit - time.monotonic())
            next_commit = time.monotonic() + self._commit_interval
            items = self._take(first)
            frames = [item for item in items if isinstance(item, _Frame)]
            rotations = sum(isinstance(item, _Rotate) for item in items)
            stop = any(isinstance(item, _Stop) for item in items)
            committed = self._commit(frames) if frames else []
            if rotations or stop or self._offset >= self._segment_bytes:
                self._complete_segment()
            self._rotations_done += rotations
            self._on_commit(Committed(committed, self._segment, self._rotations_done))

    def _take(self, first: _Item) -> list[_Item]:
        items = [first]
        try:
            while True:
                items.append(self._queue.get_nowait())
        except Empty:
            return items

    def _commit(self, frames: list[_Frame]) -> list[tuple[str, Location]]:
        data = b"".join(frame(payload) for _, payload in frames)
        retry = _RETRY_FIRST_S
        while True:
            last_try = self._stopping.is_set()
            try:
                segment, start = self._write(data)
            except OSError as error:
                self._refused(error)
            else:
                break
            if last_try:
                self._lost += len(frames)
                logger.critical("the journal closes without %d records: %s", len(frames), self.failure)
                return []
            self._stopping.wait(retry)
            retry = min(2 * retry, _RETRY_LAST_S)
        self.failure = None
        self._committed_bytes += sum(len(payload) for _, payload in frames)
        return _locations(frames, segment, start)

    def _write(self, data: bytes) -> tuple[Path, int]:
        segment = self._segment or self._open_segment()
        start = self._offset
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fdatasync(self._fd)
        self._offset = start + len(data)
        return segment, start

    def _open_segment(self) -> Path:
        self._segment_number += 1
        segment = self._folder / f"{self._segment_number:08d}{SEGMENT_SUFFIX}"
        # The texts of users: nobody else's business.
        self._fd = os.open(segment, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._segment = segment
        self._offset = 0
        _sync_folder(self._folder)
        return segment

    def _complete_segment(self) -> None:
        if self._segment is not None:
            os.close(self._fd)
            self._segment = None
            self._offset = 0

    def _refused(self, error: OSError) -> None:
        self.failures += 1
        self.failure = f"writing the journal in {self._folder} failed: {error}"
        logger.error("%s; trying again", self.failure)
        if self._segment is None:
            return
        try:
            os.ftruncate(self._fd, self._offset)
        except OSError:
            # What is left behind is either torn, and cut at recovery, or a duplicate, and stored once.
            logger.warning("could not cut the failed write off %s", self._segment)
        self._complete_segment()


def _locations(frames: list[_Frame], segment: Path, start: int) -> list[tuple[str, Location]]:
    locations = []
    for key, payload in frames:
        start += HEADER_BYTES
        locations.append((key, Location(segment, start, len(payload))))
        start += len(payload)
    return locations


def _sync_folder(folder: Path) -> None:
    """A new file survives a power failure only once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
