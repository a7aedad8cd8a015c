"""The header of a GGUF file: its metadata and its tensor directory, without reading weights.

The `gguf` package's reader makes a numpy view of every vocabulary string and takes seconds for a 49k-token model; this
one skips strings and decodes them on access, so it takes milliseconds. Constants are numbered as in ggml's
specification. The `gguf` package has the same ones: a test compares them. Importing it takes as long as all of our
readers together. The vocabulary keys are those that both the model's settings and the tokeniser need.
"""

import itertools
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.model_file import MAX_TENSORS, map_model_file

GGUF_MAGIC: Final = 0x46554747
"""`GGUF`, read as a little-endian number."""


class ValueType(IntEnum):
    """The types of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# By number: the name, the elements of a block, and its bytes.
TENSOR_KINDS: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}
SUPPORTED_VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_VALUES = 100_000
MAX_STRINGS = 1_500_000
"""Settings, and texts of all lists: the largest vocabularies have 260,000 tokens and 600,000 merges."""


class StringArray(Sequence[str]):
    """The strings of one metadata array, decoded on access. Vocabularies may have bytes that are not UTF-8."""

    def __init__(self, buffer: mmap.mmap, spans: list[tuple[int, int]]) -> None:
        self._buffer = buffer
        self._spans = spans

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(*span) for span in self._spans[index]]
        return self._decode(*self._spans[index])

    def __iter__(self) -> Iterator[str]:
        if not self._spans:
            return iter(())
        # One copy of all: a mapped file is slow to slice.
        (begin, _), (last, length) = self._spans[0], self._spans[-1]
        data = self._buffer[begin : last + length]
        places = ((start - begin, start - begin + length) for start, length in self._spans)
        return iter([data[start:end].decode("utf-8", "surrogateescape") for start, end in places])

    def _decode(self, start: int, length: int) -> str:
        return self._buffer[start : start + length].decode("utf-8", "surrogateescape")


Value = int | float | bool | str | NDArray[Any] | StringArray


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One row of the directory."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Row-major; GGUF stores it reversed."""
    offset: int
    """Bytes from the file's start."""
    nbytes: int


class HeaderEndsEarlyError(ModelFileError):
    """The file ends within its header, or the header is corrupt: where it is read in pieces, read more."""


class GGUFHeader:
    """Parsed header of the memory-mapped file `path`. `size`: bytes of the whole file, of which `path` may hold the
    beginning alone; None: `path` is whole. Raises ModelFileError for an invalid header."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.buffer = map_model_file(path)
        self._size = len(self.buffer) if size is None else size
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorEntry] = {}
        self._at = 0
        self._strings_left = MAX_STRINGS
        try:
            self._parse()
        except (struct.error, OverflowError, ValueError) as error:
            raise HeaderEndsEarlyError(
                f"{path}: the header ends early or is corrupt near byte {self._at} of {len(self.buffer)} ({error})"
            ) from error

    def _parse(self) -> None:
        magic, version = self._u32(), self._u32()
        if magic != GGUF_MAGIC:
            raise ModelFileError(f"{self.path} is not a GGUF file: it starts with {magic:#x}, not {GGUF_MAGIC:#x}")
        if version not in SUPPORTED_VERSIONS:
            raise ModelFileError(
                f"{self.path}: GGUF version {version} (or a big-endian file); supported are {SUPPORTED_VERSIONS}"
            )
        tensor_count, value_count = self._u64(), self._u64()
        if tensor_count > MAX_TENSORS or value_count > MAX_VALUES:
            raise ModelFileError(
                f"{self.path} claims {tensor_count} tensors and {value_count} settings; at most {MAX_TENSORS} and "
                f"{MAX_VALUES} are read"
            )
        for _ in range(value_count):
            key = self._string()
            self.metadata[key] = self._value(self._value_type())
        rows = [self._directory_row() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelFileError(f"{self.path}: general.alignment is {alignment}, which is not a power of two")
        data_start = -(-self._at // alignment) * alignment
        for name, dimensions, kind, offset in rows:
            if name in self.tensors:
                raise ModelFileError(f"{self.path}: tensor '{name}' occurs twice")
            self.tensors[name] = self._entry(name, dimensions, kind, data_start, offset)
        placed = sorted((entry.offset, entry.offset + entry.nbytes, entry.name) for entry in self.tensors.values())
        for (_, end, first), (start, _, second) in itertools.pairwise(placed):
            if start < end:
                raise ModelFileError(f"{self.path}: the bytes of tensors '{first}' and '{second}' overlap")

    def _entry(self, name: str, dimensions: list[int], kind: int, data_start: int, offset: int) -> TensorEntry:
        where = f"{self.path}: tensor '{name}'"
        if kind not in TENSOR_KINDS:
            raise ModelFileError(f"{where} is of unknown kind {kind}")
        kind_name, block_elements, block_bytes = TENSOR_KINDS[kind]
        if not dimensions or len(dimensions) > MAX_DIMENSIONS or 0 in dimensions:
            raise ModelFileError(f"{where} has the impossible shape {tuple(reversed(dimensions))}")
        if dimensions[0] % block_elements:
            raise ModelFileError(
                f"{where}: a row of {dimensions[0]} elements is not a multiple of {kind_name}'s {block_elements}"
            )
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        nbytes = elements // block_elements * block_bytes
        start, size = data_start + offset, self._size
        if start + nbytes > size:
            raise ModelFileError(
                f"{where} does not fit in the file: it begins at byte {data_start} + {offset} = {start} and needs "
                f"{elements} / {block_elements} x {block_bytes} = {nbytes} bytes, so it ends at byte {start + nbytes}, "
                f"but the file has {size} bytes; it is truncated or corrupt, fetch it again"
            )
        return TensorEntry(name, kind_name, tuple(reversed(dimensions)), start, nbytes)

    def _directory_row(self) -> tuple[str, list[int], int, int]:
        name, count = self._string(), self._u32()
        if count > MAX_DIMENSIONS:
            raise ModelFileError(f"{self.path}: tensor '{name}' claims {count} dimensions; at most {MAX_DIMENSIONS}")
        dimensions = [self._u64() for _ in range(count)]
        return name, dimensions, self._u32(), self._u64()

    def _u32(self) -> int:
        (value,) = _U32.unpack_from(self.buffer, self._at)
        self._at += 4
        return int(value)

    def _u64(self) -> int:
        (value,) = _U64.unpack_from(self.buffer, self._at)
        self._at += 8
        return int(value)

    def _string(self) -> str:
        length = self._u64()
        if length > len(self.buffer) - self._at:
            raise ValueError(f"a string claims {length} bytes, {len(self.buffer) - self._at} are left")
        text = self.buffer[self._at : self._at + length].decode("utf-8", "surrogateescape")
        self._at += length
        return text

    def _value_type(self) -> ValueType:
        return ValueType(self._u32())

    def _value(self, value_type: ValueType) -> Value:
        if value_type == ValueType.STRING:
            return self._string()
        if value_type == ValueType.ARRAY:
            return self._array()
        (value,) = self._numbers(_SCALARS[value_type], 1).tolist()
        return value  # type: ignore[no-any-return]

    def _array(self) -> Value:
        item_type, count = self._value_type(), self._u64()
        if item_type == ValueType.STRING:
            return self._strings(count)
        if item_type == ValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        return self._numbers(_SCALARS[item_type], count)

    def _numbers(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        if count == 0:
            return np.empty(0, dtype)
        values = np.frombuffer(self.buffer, dtype, count, self._at)
        self._at += values.nbytes
        return values

    def _strings(self, count: int) -> StringArray:
        buffer, at, unpack = self.buffer, self._at, _U64.unpack_from
        if count > (len(buffer) - at) // 8:
            raise ValueError(f"an array claims {count} strings, {len(buffer) - at} bytes are left")
        self._strings_left -= count
        if self._strings_left < 0:
            raise ModelFileError(f"{self.path} has lists of more than {MAX_STRINGS} texts")
        spans = []
        for _ in range(count):
            (length,) = unpack(buffer, at)
            spans.append((at + 8, length))
            at += 8 + length
        if at > len(buffer):
            raise ValueError(f"an array of {count} strings ends at byte {at}")
        self._at = at
        return StringArray(buffer, spans)


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` (llama.cpp's `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_END_KEYS = ("eos", "eot", "eom")
# Files often name one end token although the model was trained with several: chat models also stop at the base model's
# end of text. Any control token with one of these texts ends a generation.
_END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "</s>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    }
)


def token_types(header: GGUFHeader) -> NDArray[np.int32]:
    """One TokenType per token id; empty if the file has none."""
    types = header.metadata.get("tokenizer.ggml.token_type")
    return types.astype(np.int32) if isinstance(types, np.ndarray) else np.empty(0, np.int32)


def end_of_generation_ids(header: GGUFHeader) -> tuple[int, ...]:
    """Ids that end a generation: the file's named one first, no duplicates."""
    ids = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS]
    end_ids = [value for value in ids if isinstance(value, int)]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray):
        controls = np.flatnonzero(token_types(header)[: len(tokens)] == TokenType.CONTROL)
        end_ids += [int(index) for index in controls if tokens[int(index)] in _END_TEXTS]
    return tuple(dict.fromkeys(end_ids))
