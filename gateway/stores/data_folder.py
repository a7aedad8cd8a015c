"""The data folder and everything in it belong to one user alone: it holds prompts, answers, hashes and sockets."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

PRIVATE_UMASK = 0o077
_OTHERS = 0o077
# Folders and files that AIO makes there, as patterns.
_FOLDERS = ("journal", "classifier", "probes", "cluster", "engines", "measured", "bench")
_FILES = ("aio.sqlite3*", "*knobs.json", "keys_required", "*.sock", "*.lock", "*.json")
# What a volume or a home directory holds besides.
_NOT_FOREIGN = ("lost+found", ".*")


def private_data_folder(path: Path) -> None:
    """Make the data folder, mode 0700, and take the rights of others from an existing one and from AIO's files in it.

    From here on this process makes files 0600 and folders 0700. A line of the log says what was changed and what could
    not be: modes on a Kubernetes volume with `fsGroup`, and a folder that holds other folders or is shared as /tmp is.
    """
    os.umask(PRIVATE_UMASK)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.stat()
    repaired = refused = 0
    for entry in _entries_of_ours(path):
        repaired, refused = _counted(entry, repaired, refused)
    is_open = bool(status.st_mode & _OTHERS)
    if is_open and (status.st_mode & stat.S_ISVTX or _holds_other_folders(path)):
        log.warning(
            "others may list the data folder %s (mode %o), and its mode stays, since it is not for AIO alone: give AIO"
            " a folder of its own with AIO_DATA_DIR",
            path,
            stat.S_IMODE(status.st_mode),
        )
    else:
        # Last: a repair that is interrupted is repeated at the next start.
        repaired, refused = _counted(path, repaired, refused)
    if repaired:
        log.warning(
            "the data folder %s (mode %o) or files in it were open to others: %d modes were changed, to 0700 and 0600",
            path,
            stat.S_IMODE(status.st_mode),
            repaired,
        )
    if refused:
        log.warning(
            "%d modes in the data folder %s cannot be changed by this user; others may read them", refused, path
        )


def _counted(path: Path, repaired: int, refused: int) -> tuple[int, int]:
    """Take the rights of others from `path`, and count."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS:
            return repaired, refused
        path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    except FileNotFoundError:
        return repaired, refused
    except OSError:
        return repaired, refused + 1
    return repaired + 1, refused


def _entries_of_ours(path: Path) -> Iterator[Path]:
    for entry in path.iterdir():
        if entry.is_symlink():
            continue
        if entry.is_dir():
            if entry.name in _FOLDERS:
                yield entry
                # Links are not followed.
                for folder, folders, files in os.walk(entry):
                    yield from (Path(folder, name) for name in (*folders, *files))
        elif any(entry.match(pattern) for pattern in _FILES):
            yield entry


def _holds_other_folders(path: Path) -> bool:
    known = (*_FOLDERS, *_NOT_FOREIGN)
    return any(entry.is_dir() and not any(entry.match(pattern) for pattern in known) for entry in path.iterdir())
