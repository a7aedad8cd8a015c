"""The 8-bit layers of a safetensors checkpoint, and 2:4 sparse weights.

INT8 or FP8 codes have scales per tensor, channel or block. Sparse weights of compressed-tensors ("sparse-24-bitmask")
are read as dense ones with zeros (SPEC TI-11). Of a weight [N, K], `compressed` [N, K / 2] holds two numbers of every
four, `bitmask` uint8 [N, K / 8] which ones, the first of eight in the lowest bit, and `shape` [2, 1] its size (Mishra
et al. 2021, "Accelerating sparse deep neural networks"). The numbers may be FP8 or INT8 codes, which have scales of
their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.block_formats import ELEMENTS, scaled_blocks
from inference_core.loaders.huggingface.quantized_layer import Files, QuantizedLayer, check_boundaries, packed_rows
from inference_core.loaders.huggingface.safetensors_file import DTYPES, Entry, SafetensorsFile, TensorFile
from inference_core.loaders.packed_tensor import Kind, PackedTensor, bfloat16_to_float32

CODES = {"I8": "S8", "F8_E4M3": "F8"}
_SCALES = ("weight_scale", "weight_scale_inv", "SCB")
_SCALE_DTYPES = ("F32", "F16", "BF16")
# The file's activation scales are not used: activations are quantised per row, which is at least as exact.
_UNUSED = ("input_scale", "input_zero_point", "weight_zero_point", "weight_format")
# LLM.int8() (Dettmers et al. 2022) stores the largest absolute weight of an output, whose code is 127.
_LARGEST = "SCB"


@dataclass(frozen=True, slots=True)
class ScaledLayer(QuantizedLayer):
    """w = scale * code; parts may share a scale of several outputs."""

    scale: str

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """See `QuantizedLayer`. Raises ModelFileError if the inputs are not a whole number of blocks."""
        if self.shape[1] % ELEMENTS:
            raise ModelFileError(
                f"{path}: '{self.name}' has {self.shape[1]} inputs; 8-bit layers need a multiple of {ELEMENTS}"
            )
        check_boundaries(path, self, rows, columns)
        dtype = self.files["weight"].entries[f"{self.name}.weight"].dtype
        kind: Kind = "S8" if dtype == "I8" else "F8"
        return PackedTensor(kind, (len(rows), len(columns)), lambda: self._blocks(rows, columns))

    @property
    def column_unit(self) -> int:
        """The number of inputs that share a scale, in whole blocks."""
        block = _blocks_of(self.files[self.scale].entries[f"{self.name}.{self.scale}"].shape, self.shape)
        assert block is not None  # checked when the file was opened
        return ELEMENTS if block[1] == self.shape[1] else block[1]

    def _blocks(self, rows: range, columns: range) -> NDArray[np.uint8]:
        codes = self.part("weight")[rows.start : rows.stop, columns.start : columns.stop]
        return packed_rows(scaled_blocks(codes, _per_block(self._scales(), self.shape, rows, columns)))

    def _scales(self) -> NDArray[np.float32]:
        array = self.part(self.scale)
        bits = self.files[self.scale].entries[f"{self.name}.{self.scale}"].dtype == "BF16"
        scales = bfloat16_to_float32(array) if bits else array.astype(np.float32)
        return scales / np.float32(127) if self.scale == _LARGEST else scales


def scaled_layers(path: Path, files: Files) -> dict[str, ScaledLayer]:
    """The layers by the name of their weight: every matrix of INT8 or E4M3 codes. Raises ModelFileError."""
    names = [name for name, file in files.items() if name.endswith(".weight") and file.entries[name].dtype in CODES]
    return {name: _layer(path, files, name.removesuffix(".weight")) for name in names}


def _layer(path: Path, files: Files, name: str) -> ScaledLayer:
    shape = files[f"{name}.weight"].entries[f"{name}.weight"].shape
    scale = next((s for s in _SCALES if f"{name}.{s}" in files), None)
    if len(shape) != 2 or scale is None:
        raise ModelFileError(f"{path}: '{name}.weight' {shape} needs two dimensions and one of {', '.join(_SCALES)}")
    entry = files[f"{name}.{scale}"].entries[f"{name}.{scale}"]
    if entry.dtype not in _SCALE_DTYPES or _blocks_of(entry.shape, (shape[0], shape[1])) is None:
        raise ModelFileError(
            f"{path}: '{name}.{scale}' is {entry.dtype} {entry.shape}, which does not spread over weights {shape}"
        )
    parts = {part: files[f"{name}.{part}"] for part in ("weight", scale, *_UNUSED) if f"{name}.{part}" in files}
    zero = parts.get("weight_zero_point")
    if zero is not None and np.any(zero[f"{name}.weight_zero_point"]):
        raise ModelFileError(f"{path}: '{name}' has zero points; 8-bit layers are read where they are symmetric")
    order = parts.get("weight_format")
    if order is not None and np.any(order[f"{name}.weight_format"]):
        raise ModelFileError(f"{path}: '{name}.weight_format' names another order than row after row")
    return ScaledLayer(name, (shape[0], shape[1]), parts, scale)


def _blocks_of(scales: tuple[int, ...], shape: tuple[int, int]) -> tuple[int, int] | None:
    """Weights [rows, columns] that share a scale; None if scales of this shape do not fit."""
    if scales in ((), (1,)):
        return shape
    if len(scales) == 1:
        scales = (scales[0], 1)
    if len(scales) != 2 or not (0 < scales[0] <= shape[0] and 0 < scales[1] <= shape[1]):
        return None
    block = _side(shape[0], scales[0]), _side(shape[1], scales[1])
    if (-(-shape[0] // block[0]), -(-shape[1] // block[1])) != scales:
        return None
    whole = block[1] % ELEMENTS == 0 or block[1] == shape[1]
    return block if whole else None


def _side(size: int, count: int) -> int:
    """Weights of `size` per scale of `count`: equal parts, or blocks of a power of two with a shorter last one."""
    if size % count == 0:
        return size // count
    return 1 << (-(-size // count) - 1).bit_length()


def _per_block(scales: NDArray[np.float32], shape: tuple[int, int], rows: range, columns: range) -> NDArray[np.float32]:
    """The scale of every 32 inputs of the given part, [rows, columns / 32]; `shape` is the whole layer's."""
    block = _blocks_of(scales.shape, shape)
    assert block is not None
    groups = np.arange(columns.start, columns.stop, ELEMENTS) // block[1]
    bands = np.arange(rows.start, rows.stop) // block[0]
    grid = scales.reshape(-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    return np.ascontiguousarray(grid[bands][:, groups])


_PARTS = ("compressed", "bitmask", "shape")
_HALF_OF_FOUR = np.array([bin(byte & 15).count("1") == bin(byte >> 4).count("1") == 2 for byte in range(256)])


class SparseWeight:
    """A `TensorFile` with one tensor, `NAME.weight`, made dense on access."""

    def __init__(self, folder: Path, name: str, files: Mapping[str, SafetensorsFile]) -> None:
        self.path = folder
        self._name = name
        self._parts = {part: files[f"{name}.{part}"] for part in _PARTS}
        dtype, shape = self._checked()
        self.entries = {f"{name}.weight": Entry(dtype, shape, (0, shape[0] * shape[1] * DTYPES[dtype].itemsize))}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """[N, K], read-only. Raises ModelFileError unless two of every four numbers are stored."""
        entry, mask = self.entries[name], self._array("bitmask")
        if not _HALF_OF_FOUR[mask].all():
            raise ModelFileError(f"{self.path}: '{self._name}.bitmask' does not name two of every four weights")
        dense = np.zeros(entry.shape, DTYPES[entry.dtype])
        dense[np.unpackbits(mask, axis=1, bitorder="little").astype(bool)] = self._array("compressed").reshape(-1)
        dense.flags.writeable = False
        return dense

    @cached_property
    def stored_bytes(self) -> int:
        return sum(file.entries[f"{self._name}.{part}"].num_bytes for part, file in self._parts.items())

    def _checked(self) -> tuple[str, tuple[int, int]]:
        entries = {part: file.entries[f"{self._name}.{part}"] for part, file in self._parts.items()}
        values, mask = entries["compressed"], entries["bitmask"]
        stated = self._array("shape").reshape(-1).tolist()
        rows, columns = stated if len(stated) == 2 else (0, 0)
        wanted = ((rows, columns // 2), (rows, columns // 8))
        if columns % 8 or mask.dtype != "U8" or rows < 1 or (values.shape, mask.shape) != wanted:
            raise ModelFileError(
                f"{self.path}: '{self._name}' has the numbers {values.shape} and the bits {mask.shape} of a 2:4 sparse "
                f"weight {stated}; half and an eighth of a multiple of 8 inputs are needed"
            )
        return values.dtype, (rows, columns)

    def _array(self, part: str) -> NDArray[Any]:
        return self._parts[part][f"{self._name}.{part}"]


def made_dense(folder: Path, files: Mapping[str, SafetensorsFile]) -> dict[str, TensorFile]:
    """`files` with a dense weight in place of the parts of every sparse one. Raises ModelFileError."""
    suffix = f".{_PARTS[0]}"
    names = [name.removesuffix(suffix) for name in files if name.endswith(suffix)]
    for name in names:
        for part in _PARTS[1:]:
            if f"{name}.{part}" not in files:
                raise ModelFileError(f"{folder} holds '{name}{suffix}' but no '{name}.{part}'")
    parts = {f"{name}.{part}" for name in names for part in _PARTS}
    dense: dict[str, TensorFile] = {name: file for name, file in files.items() if name not in parts}
    return dense | {f"{name}.weight": SparseWeight(folder, name, files) for name in names}
