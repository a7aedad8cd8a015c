"""What quantised linear layers of safetensors checkpoints have in common, whatever their format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.loaders.safetensors_file import SafetensorsFile

Files = Mapping[str, SafetensorsFile]


class QuantizedLayer(Protocol):
    """One linear layer `name`, [outputs, inputs] = `shape`; `files` holds each of its parts, by suffix."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def files(self) -> Files: ...

    def tensor(self, path: Path) -> PackedTensor:
        """The layer's weights; `path` is named in the ModelFileError for what cannot be read."""


def without_parts(layers: Mapping[str, QuantizedLayer], files: Files) -> dict[str, SafetensorsFile]:
    """The tensors that belong to no quantised layer. A layer's bias of zeros goes too: AutoGPTQ adds one to every
    layer."""
    parts = {f"{layer.name}.{part}" for layer in layers.values() for part in layer.files}
    zeros = {bias for layer in layers.values() if _is_zero(bias := f"{layer.name}.bias", files)}
    return {name: file for name, file in files.items() if name not in parts | zeros}


def _is_zero(name: str, files: Files) -> bool:
    return name in files and not np.any(files[name][name])
