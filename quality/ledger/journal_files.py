"""The journal's files: segments of length- and checksum-framed payloads, so that a torn tail is detected, in a
process's own folder, which is locked while the process lives and adopted by another process after its death.

A frame is `<u32 length> <u32 crc> payload`, little-endian. The checksum covers length and payload, so that a tail of
zeros, which some file systems leave after a power failure, is not a valid (empty) frame."""

import contextlib
import fcntl
import os
import secrets
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from inference_core.io.files import sync_folder

_HEADER = struct.Struct("<II")
HEADER_BYTES = _HEADER.size
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
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Recovered(NamedTuple):
    """The payloads of a dead process's segment in the order of writing, and the bytes cut off its end."""

    frames: list[tuple[Location, bytes]]
    torn_bytes: int


def frame(payload: bytes) -> bytes:
    """Return `payload` with its header."""
    return _HEADER.pack(len(payload), _checksum(payload)) + payload


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
    found = os.pread(descriptor, HEADER_BYTES + location.length, location.offset - HEADER_BYTES)
    payload = found[HEADER_BYTES:]
    if found[:HEADER_BYTES] != _HEADER.pack(location.length, _checksum(payload)):
        raise SegmentError(f"{location.segment} is damaged at byte {location.offset}: restore the file or remove it")
    return payload


def recover(segment: Path) -> Recovered:
    """Read every whole frame of a segment without a writer, and cut off the torn tail."""
    data = segment.read_bytes()
    frames: list[tuple[Location, bytes]] = []
    end = 0
    while (payload := _payload_at(data, end)) is not None:
        frames.append((Location(segment, end + HEADER_BYTES, len(payload)), payload))
        end += HEADER_BYTES + len(payload)
    if end < len(data):
        os.truncate(segment, end)
    return Recovered(frames, len(data) - end)


def _payload_at(data: bytes, start: int) -> bytes | None:
    if start + HEADER_BYTES > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, start)
    payload = data[start + HEADER_BYTES : start + HEADER_BYTES + length]
    return payload if len(payload) == length and _checksum(payload) == checksum else None


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
        """Delete the folder and its contents."""
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
