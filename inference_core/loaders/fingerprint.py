"""Content hash of a model: the key of caches of derived data, so that a changed file never gets stale data."""

import contextlib
import hashlib
from pathlib import Path

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.atomic_file import atomic_file
from inference_core.loaders.model_file import open_model_file

_CHUNK = 1 << 20
_FOLDER_PATTERNS = ("*.safetensors", "*.json", "*.jinja")


class _CachedDigest(msgspec.Struct, frozen=True):
    """A file's size, time and inode when its content was hashed, and the digest."""

    size: int
    mtime_ns: int
    inode: int
    digest: str


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
