"""The interface of quantised linear layers of safetensors checkpoints, whatever their format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.safetensors_file import TensorFile
from inference_core.loaders.packed_tensor import PackedTensor

Files = Mapping[str, TensorFile]


class QuantizedLayer(Protocol):
    """One linear layer `name`, [outputs, inputs] = `shape`; `files` holds each of its parts, by suffix."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def files(self) -> Files: ...

    def tensor(self, path: Path) -> PackedTensor:
        """The layer's weights. Raises ModelFileError, naming `path`, if they cannot be read."""

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """Read only these outputs and inputs; see `Checkpoint.cut`."""

    @property
    def row_unit(self) -> int:
        """The number of outputs packed together."""

    @property
    def column_unit(self) -> int:
        """The number of inputs packed together or sharing a scale; a scale of all inputs does not count."""


def check_boundaries(path: Path, layer: QuantizedLayer, rows: range, columns: range) -> None:
    """Raises ModelFileError if a boundary is inside a unit or outside the layer."""
    parts = ((rows, layer.row_unit, layer.shape[0], "outputs"), (columns, layer.column_unit, layer.shape[1], "inputs"))
    for span, unit, total, what in parts:
        if not 0 <= span.start <= span.stop <= total:
            raise ModelFileError(
                f"{path}: {what} {span.start} to {span.stop} lie outside of '{layer.name}' {layer.shape}"
            )
        if any(border % unit and border != total for border in (span.start, span.stop)):
            raise ModelFileError(
                f"{path}: {what} {span.start} to {span.stop} of '{layer.name}' split a group of {unit}; "
                f"cut at multiples of {unit}"
            )


def without_parts(layers: Mapping[str, QuantizedLayer], files: Files) -> dict[str, TensorFile]:
    """The tensors that belong to no quantised layer, without biases of zeros, which AutoGPTQ adds to every layer."""
    parts = {f"{layer.name}.{part}" for layer in layers.values() for part in layer.files}
    zeros = {bias for layer in layers.values() if _is_zero(bias := f"{layer.name}.bias", files)}
    return {name: file for name, file in files.items() if name not in parts | zeros}


def _is_zero(name: str, files: Files) -> bool:
    return name in files and not np.any(files[name][name])
