"""Reads 2:4 sparse weights of compressed-tensors ("sparse-24-bitmask") as dense ones with zeros (SPEC TI-11).

Of a weight [N, K], `compressed` [N, K / 2] holds two numbers of every four, `bitmask` uint8 [N, K / 8] which ones, the
first of eight in the lowest bit, and `shape` [2, 1] its size (Mishra et al. 2021, "Accelerating sparse deep neural
networks"). The numbers may be FP8 or INT8 codes, which have scales of their own.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.safetensors_file import DTYPES, Entry, SafetensorsFile, TensorFile

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
        """Bytes of the parts in their files."""
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
