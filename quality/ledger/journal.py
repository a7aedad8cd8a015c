"""The append-only journal: one thread writes, another fsyncs many payloads at once.

Its files are segments of framed payloads in a process's own folder, which is locked while the process lives and
adopted by another process after its death. A frame is `MARKER <u32 length> <u32 crc> payload`, little-endian. The
checksum covers length and payload, so that a tail of zeros, which some file systems leave after a power failure, is
not a valid (empty) frame. The marker finds the next frame after a damaged one; frames of earlier versions have none."""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from inference_core.io.files import sync_folder

# No payload contains it, whatever its caller wrote: msgpack never uses the byte 0xC1, no UTF-8 text has it, and a
# number has at most eight bytes.
MARKER = b"\xc1" * 9
_HEADER = struct.Struct("<II")
HEADER_BYTES = len(MARKER) + _HEADER.size
SEGMENT_SUFFIX = ".journal"


class Location(NamedTuple):
    """The location of a payload: `length` bytes from `offset` in `segment`."""

    segment: Path
    offset: int
    length: int


class SegmentError(RuntimeError):
    """A frame that was written correctly can no longer be read: the disk or another program changed it."""


class SegmentWriter:
    """A segment being written. `size`: bytes written; `synced`: bytes known to have reached the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.synced = 0
        # The file has users' texts, so only its owner may read it.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            sync_folder(path.parent)
        except OSError:
            self.abandon()
            raise

    def write(self, payloads: Sequence[bytes]) -> list[Location]:
        """Append frames, all or (raising OSError) none. They survive a kill of the process, but not a power failure."""
        data = memoryview(b"".join(map(frame, payloads)))
        done = 0
        while done < len(data):
            # Write at an explicit position, so that the next attempt overwrites the remains of a failed one.
            done += os.pwrite(self._descriptor, data[done:], self.size + done)
        locations = []
        for payload in payloads:
            locations.append(Location(self.path, self.size + HEADER_BYTES, len(payload)))
            self.size += HEADER_BYTES + len(payload)
        return locations

    def sync(self) -> None:
        """Flush everything written so far to the disk; may run while another thread writes."""
        size = self.size
        os.fdatasync(self._descriptor)
        self.synced = size

    def abandon(self) -> None:
        """Close and keep only what is known to have reached the disk (the pages of a failed sync cannot be trusted)."""
        # If this fails too, recovery cuts off the torn tail, and whole frames are still stored once.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.synced)
            if self.synced == 0:
                self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Recovered(NamedTuple):
    """The payloads of a dead process's segment in the order of writing, and what of it could not be read."""

    frames: list[tuple[Location, bytes]]
    unreadable_bytes: int
    """Bytes outside whole frames, because a write was not finished or the disk changed them."""
    lost: int
    """The number of frames that began there; at least 1 where an earlier version wrote them, without markers."""


def frame(payload: bytes) -> bytes:
    return MARKER + _HEADER.pack(len(payload), _checksum(payload)) + payload


def read_payload(location: Location) -> bytes:
    """The payload at `location`.

    Raises:
        SegmentError: the bytes there are not what was written, or the file is gone.
        OSError: the segment cannot be read now.
    """
    return read_payloads([location])[0]


def read_payloads(locations: Iterable[Location]) -> list[bytes]:
    """The payloads at `locations`; neighbours in one segment share its opening. Raises as `read_payload`."""
    payloads: list[bytes] = []
    for segment, group in groupby(locations, attrgetter("segment")):
        try:
            with segment.open("rb", buffering=0) as file:
                payloads += [_read(file.fileno(), location) for location in group]
        except FileNotFoundError as error:
            raise SegmentError(f"{segment} was deleted by another program: restore it") from error
    return payloads


def _read(descriptor: int, location: Location) -> bytes:
    data = os.pread(descriptor, _HEADER.size + location.length, location.offset - _HEADER.size)
    payload = data[_HEADER.size :]
    if data[: _HEADER.size] != _HEADER.pack(location.length, _checksum(payload)):
        raise SegmentError(f"{location.segment} is damaged at byte {location.offset}: restore the file or remove it")
    return payload


def recover(segment: Path) -> Recovered:
    """Read every whole frame of a segment without a writer, and cut off what follows the last one."""
    data = segment.read_bytes()
    frames: list[tuple[Location, bytes]] = []
    unreadable: list[bytes] = []
    end = 0
    for start, location in _whole_frames(segment, data):
        unreadable.append(data[end:start])
        end = location.offset + location.length
        frames.append((location, data[location.offset : end]))
    unreadable.append(data[end:])
    if end < len(data):
        os.truncate(segment, end)
    return Recovered(frames, sum(map(len, unreadable)), sum(map(_frames_begun, unreadable)))


def _whole_frames(segment: Path, data: bytes) -> Iterator[tuple[int, Location]]:
    """Yield where each whole frame begins and where its payload is. After a damaged frame, go on at the next marker."""
    start = 0
    while 0 <= start < len(data):
        location = _frame_at(segment, data, start)
        if location is None:
            start = data.find(MARKER, start + 1)
        else:
            yield start, location
            start = location.offset + location.length


def _frame_at(segment: Path, data: bytes, start: int) -> Location | None:
    """Return where the payload of a whole frame at `start` is, with or without a marker; None if there is none."""
    header = start + len(MARKER) * data.startswith(MARKER, start)
    offset = header + _HEADER.size
    if offset > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, header)
    if offset + length > len(data) or _checksum(data[offset : offset + length]) != checksum:
        return None
    return Location(segment, offset, length)


def _frames_begun(unreadable: bytes) -> int:
    """Count the frames that began in bytes without a whole frame: none if nothing was written, else at least one."""
    return max(1, unreadable.count(MARKER)) if unreadable.strip(b"\0") else 0


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))


_LOCK = "lock"


class JournalFolder:
    """A folder under the journal root that only this object may use; the kernel unlocks it when the process dies."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def segments(self) -> list[Path]:
        """Segment files, oldest first."""
        return sorted(self.path.glob(f"*{SEGMENT_SUFFIX}"))

    def release(self) -> None:
        """Unlock the folder with its contents, so that the next process to start can adopt it."""
        os.close(self._lock)

    def remove(self) -> None:
        with _root_lock(self.path.parent):
            shutil.rmtree(self.path)
            os.close(self._lock)


def claim_folder(root: Path) -> JournalFolder:
    """Make a new folder under `root` (created if missing) and lock it."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _root_lock(root):
        path = root / secrets.token_hex(8)
        path.mkdir(mode=0o700)
        lock = _try_lock(path / _LOCK)
    if lock is None:
        raise RuntimeError(f"the new folder {path} is locked by somebody else: another program writes in {root}")
    return JournalFolder(path, lock)


def adopt_orphans(root: Path) -> list[JournalFolder]:
    """Lock and return every folder under `root` whose owner is gone."""
    with _root_lock(root):
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        locks = [(path, _try_lock(path / _LOCK)) for path in folders]
    return [JournalFolder(path, lock) for path, lock in locks if lock is not None]


@contextmanager
def _root_lock(root: Path) -> Iterator[None]:
    """Hold the lock under which folders are created, adopted and deleted, so that no half-made folder is adopted."""
    with (root / _LOCK).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _try_lock(path: Path) -> int | None:
    # flock, not lockf, because it also excludes two ledgers of one process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


logger = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.05, 2.0
_CLOSING_TRIES = 3
# Payloads appended within this time are written together, because waking a thread costs more than one frame.
_GATHER_S = 0.01


class JournalFullError(RuntimeError):
    """The disk has stalled and the buffer of waiting payloads is full; this payload was not accepted."""


class Committed(NamedTuple):
    """What one fsync made durable, in the order of appending."""

    frames: list[tuple[str, Location]]
    growing: frozenset[Path]
    """Segments that may be reported again; all others are complete."""
    rotations: int
    """How many segments were completed."""


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

    One thread writes what is appended within ten milliseconds, so that it survives a kill of the process even on a slow
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
        for thread in self._threads:
            thread.start()

    def append(self, key: str, payload: bytes) -> None:
        """Append `payload`; `on_commit` names its `key` once it is durable. Never waits. Only one thread may append.

        Raises:
            JournalFullError: more than `max_pending_bytes` wait for the disk; the payload was not accepted.
        """
        if self._appended_bytes - self._committed_bytes + len(payload) > self._max_pending_bytes:
            raise JournalFullError(
                f"{self.pending_bytes} bytes already wait for the disk of {self._folder} "
                f"(allowed: {self._max_pending_bytes}): {self.failure or 'it is too slow'}"
            )
        self._appended_bytes += len(payload)
        self._queue.put(_Frame(key, payload))

    def rotate(self) -> int:
        """Request the current segment's completion: when `Committed.rotations` reaches the returned number."""
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
