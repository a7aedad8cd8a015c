"""A safetensors file, memory-mapped: a JSON directory and raw tensors (https://github.com/huggingface/safetensors).

The `safetensors` package copies tensors to NumPy and does not support bfloat16 there; these are views of the file.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prefer_huge_pages, prepare_types
from inference_core.loaders.model_file import MAX_TENSORS, map_model_file

# bfloat16 and 8-bit floats are represented by their raw bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
}
MAX_HEADER_BYTES = 24 << 20
MAX_DIMENSIONS = 8


class Entry(msgspec.Struct, frozen=True):
    """One tensor of the directory."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    """[begin, end), counted from the end of the header."""

    @property
    def num_bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


prepare_types(Entry)


class TensorFile(Protocol):
    """Arrays by name with their directory: a file, or tensors that are made of others in it."""

    path: Path
    entries: dict[str, Entry]

    def __getitem__(self, name: str) -> NDArray[Any]: ...


class SafetensorsFile(Mapping[str, NDArray[Any]]):
    """Maps names to read-only arrays over the mapped file. Raises ModelFileError for an invalid file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer = map_model_file(path)
        prefer_huge_pages(self._buffer)
        self.entries, self.metadata, self._data_start = self._directory()

    def _directory(self) -> tuple[dict[str, Entry], dict[str, str], int]:
        size = len(self._buffer)
        length = int.from_bytes(self._buffer[:8], "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ModelFileError(
                f"{self.path}: the header claims {length} bytes, {max(size - 8, 0)} follow; the file is truncated "
                "or not a safetensors file"
            )
        try:
            raw = msgspec.json.decode(self._buffer[8 : 8 + length], type=dict[str, msgspec.Raw])
            if len(raw) > MAX_TENSORS:
                raise ModelFileError(f"{self.path} has {len(raw)} tensors; at most {MAX_TENSORS} are read of one file")
            metadata = msgspec.json.decode(raw.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
            entries = {name: msgspec.json.decode(row, type=Entry) for name, row in raw.items()}
        except JSON_ERRORS as error:
            raise ModelFileError(f"{self.path}: the header is not a safetensors directory ({error})") from error
        for name, entry in entries.items():
            self._check(name, entry, size - 8 - length)
        self._check_overlap(entries)
        return entries, metadata, 8 + length

    def _check(self, name: str, entry: Entry, available: int) -> None:
        where = f"{self.path}: tensor '{name}'"
        if entry.dtype not in DTYPES:
            raise ModelFileError(f"{where} is of kind {entry.dtype}; supported are {', '.join(DTYPES)}")
        begin, end = entry.data_offsets
        if len(entry.shape) > MAX_DIMENSIONS or not all(0 <= dimension < 2**63 for dimension in entry.shape):
            raise ModelFileError(f"{where} has the impossible shape {entry.shape}")
        needed = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if begin < 0 or end - begin != needed:
            raise ModelFileError(
                f"{where}: {entry.shape} x {DTYPES[entry.dtype].itemsize} bytes = {needed}, but the directory gives it "
                f"bytes {begin} to {end} = {end - begin}"
            )
        if end > available:
            raise ModelFileError(
                f"{where} ends at byte {end} of the data, but the file holds {available}; it is truncated, fetch "
                "it again"
            )

    def _check_overlap(self, entries: dict[str, Entry]) -> None:
        """Raises ModelFileError if a byte belongs to two tensors."""
        placed = sorted((entry.data_offsets, name) for name, entry in entries.items() if math.prod(entry.shape))
        for ((_, end), first), ((begin, _), second) in itertools.pairwise(placed):
            if begin < end:
                raise ModelFileError(f"{self.path}: the bytes of tensors '{first}' and '{second}' overlap")

    @property
    def data(self) -> memoryview:
        """Everything after the header."""
        return memoryview(self._buffer)[self._data_start :]

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self.entries[name]
        dtype = DTYPES[entry.dtype]
        count = math.prod(entry.shape)
        if count == 0:
            return np.frombuffer(b"", dtype).reshape(entry.shape)
        start = self._data_start + entry.data_offsets[0]
        return np.frombuffer(self._buffer, dtype, count, start).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
