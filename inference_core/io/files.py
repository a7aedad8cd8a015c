"""Files: replaced atomically, read as the text that people write, and mapped to memory.

Readers of a replaced file see either the old content or the new, even after a crash. Text is UTF-8, with or without
the byte order mark that some editors put first. `JSON_ERRORS` are the exceptions that decoding untrusted JSON can
raise. Secrets come from an environment variable, or from the file that its `_FILE` form names. Memory that every step
reads in full has huge pages: with small pages, address translation costs time.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` for writing and reading; it replaces `path` when the block succeeds.

    The file is fsynced before the rename, and the folder after it. If writers race, the last rename wins. On failure
    the temporary file is removed and `path` is unchanged. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def tried_lock(path: Path) -> Iterator[bool]:
    """Try to take the lock of a file that only its owner reads, and yield whether that was possible; the kernel gives
    it back when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Fsync a folder's entries: a new file survives a power failure only after this. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MOST_SECRET_BYTES = 1 << 20
FILE_FORM = "_FILE"
"""Appended to the name of a variable: the variable with the path of a file that has its value (Docker's, systemd's and
Kubernetes' secrets)."""


class SecretError(ValueError):
    """A secret cannot be read, or is none; the message names the variable and never has the value."""


def secret_of(environment: Mapping[str, str], variable: str) -> str:
    """Return the value of `variable` without blanks around it, or that of the file that `VARIABLE_FILE` names; "" if
    neither is set, where an empty one counts as not set. Raises `SecretError`."""
    value, path = (environment.get(name, "").strip() for name in (variable, variable + FILE_FORM))
    if not path:
        return value
    if value:
        raise SecretError(f"{variable} and {variable}{FILE_FORM} are both set; keep one of them")
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_SECRET_BYTES + 1)
        value = content.decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SecretError(f"{variable}{FILE_FORM}: {path} cannot be read: {why}") from None
    if not value or len(content) > MOST_SECRET_BYTES:
        raise SecretError(f"{variable}{FILE_FORM}: {path} {'is too large for a secret' if value else 'is empty'}")
    return value


class NotUtf8Error(OSError):
    """A file in another encoding, such as Latin-1; the message says where and what to do. It is an `OSError`, because
    a caller treats it as any file that cannot be read."""

    def __init__(self, path: Path, byte: int, line: int) -> None:
        said = f"it is not UTF-8: byte 0x{byte:02x} in line {line}; save it as UTF-8"
        super().__init__(errno.EILSEQ, said, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark. Raises `OSError`, such as `NotUtf8Error`."""
    content = path.read_bytes()
    try:
        # Lines end as in a file that is opened as text.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotUtf8Error(path, content[error.start], content.count(b"\n", 0, error.start) + 1) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


# For invalid UTF-8 and for nesting too deep for the stack, msgspec raises Python's own exceptions.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def prepare_types(*kinds: type) -> None:
    """Let msgspec prepare types that several threads will decode; for modules, at their import.

    It prepares a type at its first use. Another thread that uses the type at that moment reads what is half prepared,
    and the process crashes (seen with msgspec 0.22).
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Back pages touched from now on by huge pages (2 MiB) if the system supports them; else do nothing."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
