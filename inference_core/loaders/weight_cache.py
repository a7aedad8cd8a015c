"""Cache of repacked weights on disk, keyed by source and layout: later starts map them instead of repacking."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.io.files import atomic_file
from inference_core.loaders.huggingface.safetensors_file import DTYPES, Entry, SafetensorsFile

ALIGNMENT = 64  # A cache line, and the widest vector load.
_PADDING = "__padding__"
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
# The directory comes first but is known last: it has a fixed size, padded with spaces as the format allows.
_HEADER_BYTES = (1 << 20) - 8
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_log = logging.getLogger(__name__)

Build = Callable[[], Iterable[tuple[str, NDArray[Any]]]]


class WeightCache:
    """Files `root`/weights/FINGERPRINT/LAYOUT.safetensors, readable by the `safetensors` package.

    Files are written atomically, so processes may race: each builds the same file, and the last rename wins.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def holds(self, fingerprint: str, layout: str) -> bool:
        """Whether there is a file for them, intact or not."""
        return self._path(fingerprint, layout).exists()

    def load_or_build(self, fingerprint: str, layout: str, build: Build) -> dict[str, NDArray[Any]]:
        """Read-only arrays, memory-mapped and aligned to 64 bytes.

        `fingerprint` identifies the source's content, `layout` the repacking and its version. If there is no intact
        file, `build` yields (name, array) pairs, which are written one by one to keep few in memory. bfloat16 is
        stored as uint16. A file of the wrong size, with a damaged directory or with a difference in one of 64 sampled
        pages is rebuilt; the other pages are not checked, since reading all of them would cost what the cache saves.
        If the folder cannot be written, the built arrays are returned.
        """
        path = self._path(fingerprint, layout)
        cached = _load(path)
        if cached is not None:
            return cached
        try:
            with atomic_file(path) as file:
                _write(file, build())
            _forget_pages(path)
        except OSError as error:
            _log.warning("cannot keep repacked weights in %s (%s); every start will repack them", path, error)
            return _in_memory(build)
        cached = _load(path)
        if cached is None:
            raise ModelFileError(f"{path} was just written and cannot be read back; check the disk")
        return cached

    def _path(self, fingerprint: str, layout: str) -> Path:
        return self.root / "weights" / fingerprint / f"{layout}.safetensors"


def _load(path: Path) -> dict[str, NDArray[Any]] | None:
    """None if there is no file or it is damaged."""
    if not path.exists():
        return None
    try:
        file = SafetensorsFile(path)
    except ModelFileError as error:
        _log.warning("repacking weights: the cached file is damaged (%s)", error)
        return None
    data = file.data
    if file.metadata.get("digest") != _digest(file.entries, len(data), lambda at, n: bytes(data[at : at + n])):
        _log.warning("repacking weights: the content of the cached file %s does not match its digest", path)
        return None
    return {name: file[name] for name in file if not name.startswith(_PADDING)}


def _forget_pages(path: Path) -> None:
    """Drop the file from the page cache: read again it is in large pages, while written pages are small.

    A decode step is bound by reading weights, and takes about 5 % longer with small pages.
    """
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _in_memory(build: Build) -> dict[str, NDArray[Any]]:
    arrays = dict(build())
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _write(file: BinaryIO, arrays: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write the safetensors file. The format allows no gaps, so the padding between arrays is stored as byte arrays."""
    start = 8 + _HEADER_BYTES
    file.seek(start)
    entries: dict[str, Entry] = {}
    end = 0
    for name, array in arrays:
        for row, content in ((name, array), (f"{_PADDING}{name}", np.zeros(-array.nbytes % ALIGNMENT, np.uint8))):
            if content.size:
                file.write(np.ascontiguousarray(content).reshape(-1).view(np.uint8).data)
            if content.size or row == name:
                entries[row] = Entry(_dtype_name(name, content), content.shape, (end, end + content.nbytes))
                end += content.nbytes
    file.flush()

    def read(at: int, length: int) -> bytes:
        file.seek(start + at)
        return file.read(length)

    digest = _digest(entries, end, read)
    file.seek(0)
    file.write(_HEADER_BYTES.to_bytes(8, "little") + _header(entries, digest))


def _header(entries: dict[str, Entry], digest: str) -> bytes:
    rows: dict[str, Any] = {"__metadata__": {"digest": digest}}
    for name, entry in entries.items():
        rows[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": entry.data_offsets}
    text = json.dumps(rows, separators=(",", ":")).encode()
    if len(text) > _HEADER_BYTES:
        raise ValueError(
            f"the directory of {len(entries)} arrays takes {len(text)} bytes; {_HEADER_BYTES} are reserved"
        )
    return text.ljust(_HEADER_BYTES)


def _digest(entries: dict[str, Entry], data_bytes: int, read: Callable[[int, int], bytes]) -> str:
    """Hash of the directory, the data's length, and evenly spaced samples that include its first and last bytes."""
    rows = sorted((name, entry.dtype, list(entry.shape), list(entry.data_offsets)) for name, entry in entries.items())
    digest = hashlib.blake2b(json.dumps([data_bytes, rows]).encode(), digest_size=16)
    last = max(0, data_bytes - _SAMPLE_BYTES)
    for position in sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
        digest.update(read(position, _SAMPLE_BYTES))
    return digest.hexdigest()


def _dtype_name(name: str, array: NDArray[Any]) -> str:
    try:
        return _DTYPE_NAMES[array.dtype]
    except KeyError:
        raise TypeError(f"array '{name}' has dtype {array.dtype}; the cache holds {list(_DTYPE_NAMES)}") from None
