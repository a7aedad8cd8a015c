"""The AWQ and GPTQ layers of a safetensors checkpoint: groups their tensors by layer and checks them."""

from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.group_format import GroupFormat
from inference_core.loaders.huggingface.quantized_layer import Files, check_boundaries
from inference_core.loaders.huggingface.safetensors_file import TensorFile
from inference_core.loaders.huggingface.zero_point_blocks import ELEMENTS
from inference_core.loaders.packed_tensor import PackedTensor

_DTYPES = {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}
_OPTIONAL = ("g_idx",)


@dataclass(frozen=True, slots=True)
class GroupLayer:
    """One linear layer: its parts by suffix, each in its file. `shape` is [outputs, inputs]."""

    name: str
    shape: tuple[int, int]
    files: Files
    form: GroupFormat

    def tensor(self, path: Path) -> PackedTensor:
        """The layer's weights; see `GroupFormat.tensor`."""
        return self.form.tensor(path, self.name, self._parts())

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """Read only these outputs and inputs. Raises ModelFileError if a boundary splits a group."""
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
        return {part: file[f"{self.name}.{part}"] for part, file in self.files.items()}


def group_layers(path: Path, form: GroupFormat, files: Files) -> dict[str, GroupLayer]:
    """The layers by the name of their unquantised weight. Raises ModelFileError for parts that do not fit."""
    names = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    return {f"{name}.weight": _layer(path, form, files, name) for name in names}


def _layer(path: Path, form: GroupFormat, files: Files, name: str) -> GroupLayer:
    packed = files[f"{name}.qweight"].entries[f"{name}.qweight"].shape
    if len(packed) != 2:
        raise ModelFileError(f"{path}: tensor '{name}.qweight' has shape {packed}; two dimensions are needed")
    shape = form.shape((packed[0], packed[1]))
    found: dict[str, TensorFile] = {}
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
        found[part] = files[full]
    return GroupLayer(name, shape, found, form)
