"""Opens the files of a model, which strangers made: regular files alone, and no more of them than a reader needs.

The content hash of a model is the key of caches of derived data, so that a changed file never gets stale data.
"""

import contextlib
import hashlib
import mmap
import os
import stat
from pathlib import Path
from typing import BinaryIO

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.files import atomic_file, prepare_types

MAX_SETTINGS = 8 << 20
"""Bytes of config.json and other settings: those of large models have some hundred thousand."""
MAX_INDEX = 32 << 20
MAX_TOKENIZER = 64 << 20
"""Bytes of an index of shards and of tokenizer.json: the largest have 16 and 35 million."""
MAX_TENSORS = 200_000
"""Tensors of one file."""


def read_model_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises ModelFileError for any other, without waiting for a pipe or a device; its cause is the OSError, if any.
    """
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # As much as it has, and one byte more where it grows: a reader's buffer is as large as what it asks for.
        content = file.read(size + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise ModelFileError(f"cannot read {path}: it has {size} bytes; at most {most} are read of such a file")
    return content


def map_model_file(path: Path) -> mmap.mmap:
    """Return a regular file's content, mapped and read-only. Raises ModelFileError, for an empty file too."""
    with open_model_file(path) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ModelFileError(f"{path} is empty") from error
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error


def open_model_file(path: Path) -> BinaryIO:
    """Open a regular file. Raises ModelFileError."""
    try:
        # Else opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelFileError(f"cannot read {path}: it is not a regular file")
    return os.fdopen(descriptor, "rb")


_CHUNK = 1 << 20
_FOLDER_PATTERNS = ("*.safetensors", "*.json", "*.jinja")


class _CachedDigest(msgspec.Struct, frozen=True):
    """A file's size, time and inode when its content was hashed, and the digest."""

    size: int
    mtime_ns: int
    inode: int
    digest: str


prepare_types(_CachedDigest)


def file_fingerprint(path: Path, cache_dir: Path | None = None) -> str:
    """BLAKE2b (hex, 128 bits) over the whole file, or over names and contents of a folder's model files.

    With `cache_dir` the digest is cached by (path, size, mtime, inode), so that an unchanged file is not read again.
    Raises ModelFileError if the model cannot be read.
    """
    try:
        if path.is_dir():
            return _folder_digest(path, cache_dir)
        return _file_digest(path, cache_dir)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error


def _folder_digest(folder: Path, cache_dir: Path | None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(file for pattern in _FOLDER_PATTERNS for file in folder.glob(pattern)):
        digest.update(f"{file.name}\0{_file_digest(file, cache_dir)}\n".encode())
    return digest.hexdigest()


def _file_digest(file: Path, cache_dir: Path | None) -> str:
    if cache_dir is None:
        return _read_digest(file)
    name = hashlib.blake2b(str(file.resolve()).encode(), digest_size=16).hexdigest()
    memo = cache_dir / "fingerprints" / f"{name}.json"
    before = file.stat()
    remembered = _cached_digest(memo)
    if remembered is not None and (remembered.size, remembered.mtime_ns, remembered.inode) == (
        before.st_size, before.st_mtime_ns, before.st_ino,
    ):  # fmt: skip
        return remembered.digest
    digest = _read_digest(file)
    looks = _CachedDigest(before.st_size, before.st_mtime_ns, before.st_ino, digest)
    with contextlib.suppress(OSError), atomic_file(memo) as stream:  # A read-only cache only costs time later.
        stream.write(msgspec.json.encode(looks))
    return digest


def _cached_digest(memo: Path) -> _CachedDigest | None:
    try:
        return msgspec.json.decode(memo.read_bytes(), type=_CachedDigest)
    except (OSError, msgspec.MsgspecError):
        return None


def _read_digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open_model_file(file) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
