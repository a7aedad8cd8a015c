"""A process's own journal folder: locked while the process lives, adopted by another process after its death."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quality.ledger.journal_segment import SEGMENT_SUFFIX

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
