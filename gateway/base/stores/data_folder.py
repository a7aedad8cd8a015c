"""The data folder and everything in it belong to one user alone: it holds prompts, answers, hashes and sockets. And to
one server, unless its database is elsewhere."""

import errno
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateway.base.settings import Settings, SettingsError

log = logging.getLogger(__name__)

PRIVATE_UMASK = 0o077
_OTHERS = 0o077
_WORLD, _ROOT_GROUP = 0o007, 0
"""A folder that only group 0 may use besides its user stays so: images that run as any user have such folders, and what
is in them is its user's alone."""
_SERVER_LOCK = "server.lock"
KEYS_REQUIRED = "keys_required"
"""The file that says that callers needed a stored key; while it exists they need one."""
# Folders and files that AIO makes there, as patterns.
_FOLDERS = ("journal", "classifier", "probes", "cluster", "engines", "measured", "bench")
_FILES = ("aio.sqlite3*", "*knobs.json", KEYS_REQUIRED, "*.sock", "*.lock", "*.json")
# What a volume or a home directory holds besides.
_NOT_FOREIGN = ("lost+found", ".*")


def private_data_folder(path: Path) -> None:
    """Make the data folder, mode 0700, and take the rights of others from an existing one and from AIO's files in it.

    From here on this process makes files 0600 and folders 0700. A line of the log says what was changed and what could
    not be: modes on a Kubernetes volume with `fsGroup`, and a folder that holds other folders or is shared as /tmp is.

    Raises `SettingsError` if it cannot be made or written.
    """
    os.umask(PRIVATE_UMASK)
    make_writable_folder(path, "data", "--data-dir")
    status = path.stat()
    repaired = refused = 0
    for entry in _entries_of_ours(path):
        repaired, refused = _counted(entry, repaired, refused)
    is_open = bool(status.st_mode & (_WORLD if status.st_gid == _ROOT_GROUP else _OTHERS))
    if is_open and (status.st_mode & stat.S_ISVTX or _holds_other_folders(path)):
        log.warning(
            "others may list the data folder %s (mode %o), and its mode stays, since it is not for AIO alone: give AIO"
            " a folder of its own with AIO_DATA_DIR",
            path,
            stat.S_IMODE(status.st_mode),
        )
    elif is_open:
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


def make_writable_folder(path: Path, what: str, option: str) -> None:
    """Make the folder, mode 0700, and check that this process can write there. Raises `SettingsError`, which names the
    option that chooses another."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(path, what, "be made", option, error) from error
    try:
        # The kernel is asked: modes say nothing about read-only file systems, and nothing to root.
        with tempfile.TemporaryFile(dir=path, buffering=0) as probe:
            probe.write(b"room")
    except OSError as error:
        raise _unusable(path, what, "be written", option, error) from error


def refuse_file(path: Path) -> None:
    """Raise `SettingsError` if the data folder is a file; a missing one is as good as an empty one to a reader."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise _is_file(path, "data", "--data-dir")


def claim_for_one_server(settings: Settings) -> None:
    """Lock the data folder for this process's life if its SQLite database is there: servers that share one would each
    count limits for themselves. Servers with another database may share it, and so may a worker and a server.

    Raises `SettingsError` if another server has it.
    """
    if settings.database_url:
        return
    path = settings.data_path
    descriptor = os.open(path / _SERVER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Held until the process ends: nothing closes the descriptor. lockf, because forked children that outlive a
        # killed server do not hold it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
        os.close(descriptor)
        by = f" (process {holder})" if holder else ""
        raise SettingsError(
            f"another aio serve{by} uses the data folder {path}; give this one its own with --data-dir or AIO_DATA_DIR"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _unusable(path: Path, what: str, cannot: str, option: str, error: OSError) -> SettingsError:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return _is_file(path, what, option)
    return SettingsError(f"the {what} folder {path} cannot {cannot} ({error.strerror}); {_another(what, option)}")


def _is_file(path: Path, what: str, option: str) -> SettingsError:
    file = next(each for each in (path, *path.parents) if each.exists())
    is_file = "is a file" if file == path else f"cannot be made, because {file} is a file"
    return SettingsError(f"the {what} folder {path} {is_file}; {_another(what, option)}")


def _another(what: str, option: str) -> str:
    return f"give another with {option} or AIO_{what.upper()}_DIR"


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
    patterns = (*_FOLDERS, *_NOT_FOREIGN)
    return any(entry.is_dir() and not any(entry.match(pattern) for pattern in patterns) for entry in path.iterdir())
