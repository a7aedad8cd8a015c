"""Layers of 4 bits in a safetensors checkpoint, as rows of blocks: those of AWQ, GPTQ and compressed-tensors.

compressed-tensors ("pack-quantized") packs codes along the inputs: `weight_packed` int32 [N, K / 8], the first of
eight in the lowest bits, each the signed weight plus 8; `weight_scale` [N, groups] in float16, bfloat16 or float32;
`weight_zero_point` int32 [N / 8, groups], packed along the outputs in the same way, if the format is not symmetric;
`weight_g_idx` int32 [K] if groups are not contiguous; `weight_shape` [2]. w = scale * (code - zero).
"""

from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.block_formats import ELEMENTS, q4_0_blocks, q4_z_blocks
from inference_core.loaders.huggingface.quantized_layer import (
    PER_INT,
    Files,
    GroupFormat,
    QuantizedLayer,
    check_boundaries,
    packed_rows,
    unpack_codes,
)
from inference_core.loaders.huggingface.safetensors_file import TensorFile
from inference_core.loaders.packed_tensor import Kind, PackedTensor, bfloat16_to_float32

_DTYPES = {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}
_OPTIONAL = ("g_idx",)


@dataclass(frozen=True, slots=True)
class GroupLayer(QuantizedLayer):
    """A layer of AWQ or GPTQ."""

    form: GroupFormat

    def tensor(self, path: Path) -> PackedTensor:
        """The layer's weights; see `GroupFormat.tensor`."""
        return self.form.tensor(path, self.name, self._parts())

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        check_boundaries(path, self, rows, columns)
        return self.form.tensor(path, self.name, self.form.cut(self._parts(), rows, columns))

    @property
    def row_unit(self) -> int:
        """Outputs that share an int32."""
        return self.form.per_int

    @property
    def column_unit(self) -> int:
        """Inputs that share a scale, or only an int32 if act-order has scattered the groups."""
        group = self.form.group_size
        if "g_idx" in self.files and group:
            groups = self.files["g_idx"][f"{self.name}.g_idx"]
            if not np.array_equal(groups, np.arange(self.shape[1]) // group):
                return self.form.per_int
        return lcm(self.form.per_int, group or ELEMENTS)

    def _parts(self) -> dict[str, NDArray[Any]]:
        return {part: self.part(part) for part in self.files}


def group_layers(path: Path, form: GroupFormat, files: Files) -> dict[str, GroupLayer]:
    """The layers by the name of their unquantised weight. Raises ModelFileError for parts that do not fit."""
    names = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    return {f"{name}.weight": _layer(path, form, files, name) for name in names}


def _layer(path: Path, form: GroupFormat, files: Files, name: str) -> GroupLayer:
    packed = files[f"{name}.qweight"].entries[f"{name}.qweight"].shape
    if len(packed) != 2:
        raise ModelFileError(f"{path}: tensor '{name}.qweight' has shape {packed}; two dimensions are needed")
    shape = form.shape((packed[0], packed[1]))
    parts: dict[str, TensorFile] = {}
    for part, expected in form.part_shapes(shape).items():
        full = f"{name}.{part}"
        if full not in files:
            if part in _OPTIONAL:
                continue
            raise ModelFileError(f"{path} holds '{name}.qweight' but no '{full}'")
        entry = files[full].entries[full]
        if entry.dtype != _DTYPES[part] or entry.shape != expected:
            raise ModelFileError(
                f"{path}: tensor '{full}' is {entry.dtype} {entry.shape}; {form.method} layers of this size and "
                f"groups of {form.group_size or 'all inputs'} have {_DTYPES[part]} {expected}"
            )
        parts[part] = files[full]
    return GroupLayer(name, shape, parts, form)


_SCALE_DTYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class CompressedInt4Layer(QuantizedLayer):
    """A layer of compressed-tensors: Q4_0 blocks if symmetric, else Q4_Z."""

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """See `QuantizedLayer`. Raises ModelFileError unless groups are runs of 32."""
        check_boundaries(path, self, rows, columns)
        groups = self._groups(path)[columns.start : columns.stop]
        runs = groups.reshape(-1, ELEMENTS) if len(columns) % ELEMENTS == 0 else None
        if runs is None or (runs != runs[:, :1]).any():
            raise ModelFileError(f"{path}: the groups of '{self.name}' are not runs of {ELEMENTS} inputs")
        kind: Kind = "Q4_Z" if "weight_zero_point" in self.files else "Q4_0"
        return PackedTensor(kind, (len(rows), len(columns)), lambda: self._blocks(rows, columns, runs[:, 0]))

    @property
    def row_unit(self) -> int:
        return PER_INT if "weight_zero_point" in self.files else 1

    @property
    def column_unit(self) -> int:
        """Inputs that share a scale, in whole blocks; one block if groups are not contiguous."""
        count = self.files["weight_scale"].entries[f"{self.name}.weight_scale"].shape[1]
        return ELEMENTS if count == 1 or "weight_g_idx" in self.files else lcm(ELEMENTS, -(-self.shape[1] // count))

    def _blocks(self, rows: range, columns: range, groups: NDArray[np.intp]) -> NDArray[np.uint8]:
        """[outputs, bytes per row], read-only. `groups`: the group of each block."""
        words = slice(columns.start // PER_INT, -(-columns.stop // PER_INT))
        codes = unpack_codes(self.part("weight_packed")[rows.start : rows.stop, words], range(PER_INT)).reshape(
            len(rows), -1
        )[:, : len(columns)]
        scales = self._scales(rows)[:, groups]
        if "weight_zero_point" in self.files:
            words = slice(rows.start // PER_INT, -(-rows.stop // PER_INT))
            packed = self.part("weight_zero_point")[words]
            zeros = unpack_codes(packed, range(PER_INT)).transpose(0, 2, 1).reshape(-1, packed.shape[1])[: len(rows)]
            blocks = q4_z_blocks(codes, scales, zeros[:, groups])
        else:
            blocks = q4_0_blocks(codes, scales)
        return packed_rows(blocks)

    def _scales(self, rows: range) -> NDArray[np.float16]:
        """[outputs, groups] as float16, which is exact for bfloat16 scales in their usual range."""
        array = self.part("weight_scale")[rows.start : rows.stop]
        bits = self.files["weight_scale"].entries[f"{self.name}.weight_scale"].dtype == "BF16"
        return (bfloat16_to_float32(array) if bits else array).astype(np.float16)

    def _groups(self, path: Path) -> NDArray[np.intp]:
        """The group of each input."""
        count = self.files["weight_scale"].entries[f"{self.name}.weight_scale"].shape[1]
        if "weight_g_idx" in self.files:
            groups = self.part("weight_g_idx").astype(np.intp)
            if groups.min(initial=0) < 0 or groups.max(initial=0) >= count:
                raise ModelFileError(f"{path}: '{self.name}.weight_g_idx' names groups outside of its {count}")
            return groups
        return np.arange(self.shape[1]) // -(-self.shape[1] // count)


def compressed_int4_layers(path: Path, files: Files) -> dict[str, CompressedInt4Layer]:
    """The layers by the name of their unquantised weight. Raises ModelFileError for parts that do not fit."""
    names = [name.removesuffix(".weight_packed") for name in files if name.endswith(".weight_packed")]
    return {f"{name}.weight": _compressed_layer(path, files, name) for name in names}


def _compressed_layer(path: Path, files: Files, name: str) -> CompressedInt4Layer:
    parts = {
        part: files[f"{name}.{part}"]
        for part in ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
        if f"{name}.{part}" in files
    }
    entries = {part: file.entries[f"{name}.{part}"] for part, file in parts.items()}
    packed, scale = entries["weight_packed"], entries.get("weight_scale")
    if scale is None or scale.dtype not in _SCALE_DTYPES or packed.dtype != "I32" or len(packed.shape) != 2:
        raise ModelFileError(f"{path}: '{name}' has no int32 codes [outputs, inputs / 8] with scales of their own")
    shape = (packed.shape[0], packed.shape[1] * PER_INT)
    if "weight_shape" in parts:
        stated = [int(size) for size in parts["weight_shape"][f"{name}.weight_shape"].reshape(-1)]
        if len(stated) != 2 or stated[0] != shape[0] or not shape[1] - PER_INT < stated[1] <= shape[1]:
            raise ModelFileError(f"{path}: '{name}.weight_shape' says {stated}, but its codes are {shape}")
        shape = (stated[0], stated[1])
    groups = scale.shape[1] if len(scale.shape) == 2 else 0
    expected: dict[str, tuple[int, ...]] = {"weight_scale": (shape[0], groups)}
    expected |= {"weight_zero_point": (-(-shape[0] // PER_INT), groups), "weight_g_idx": (shape[1],)}
    for part, wanted in expected.items():
        if part in entries and (entries[part].shape != wanted or not groups):
            raise ModelFileError(f"{path}: '{name}.{part}' has shape {entries[part].shape}; {wanted} is needed")
    return CompressedInt4Layer(name, shape, parts)
