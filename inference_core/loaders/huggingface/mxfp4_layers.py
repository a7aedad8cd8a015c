"""The experts of a gpt-oss checkpoint in MXFP4: blocks of 16 bytes and their exponents, for all experts in one tensor.

`experts.gate_up_proj_blocks` is uint8 [experts, outputs, inputs / 32, 16], `…_scales` uint8 [experts, outputs,
inputs / 32]; outputs of gate and up take turns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.ggml_blocks import MXFP4
from inference_core.loaders.huggingface.quantized_layer import Files, check_boundaries
from inference_core.loaders.packed_tensor import PackedTensor

ELEMENTS = 32
_BLOCKS, _SCALES = "_blocks", "_scales"
_PROJECTIONS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True, slots=True)
class Mxfp4Layer:
    """One expert's linear layer: outputs `first`, `first` + `step`, … of `expert`; `name` is that of all experts."""

    name: str
    shape: tuple[int, int]
    files: Files
    expert: int
    first: int
    step: int

    def tensor(self, path: Path) -> PackedTensor:
        """The layer as MXFP4 blocks in GGML's order."""
        return self.cut(path, range(self.shape[0]), range(self.shape[1]))

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """Read only these outputs and inputs. Raises ModelFileError if a boundary splits a block."""
        check_boundaries(path, self, rows, columns)
        return PackedTensor("MXFP4", (len(rows), len(columns)), lambda: self._blocks(rows, columns))

    @property
    def row_unit(self) -> int:
        """1: outputs are not packed together."""
        return 1

    @property
    def column_unit(self) -> int:
        """Inputs that share an exponent."""
        return ELEMENTS

    def _blocks(self, rows: range, columns: range) -> NDArray[np.uint8]:
        """[outputs, bytes per row], read-only."""
        groups = slice(columns.start // ELEMENTS, columns.stop // ELEMENTS)
        stored = {part[-len(_BLOCKS) :]: self._rows(part, rows)[:, groups] for part in self.files}
        blocks = np.empty(stored[_SCALES].shape, MXFP4)
        blocks["exponent"] = stored[_SCALES]
        # A byte of the file has two neighbours; one of GGML's has a number and the one 16 places behind it.
        low, high = stored[_BLOCKS] & 0x0F, stored[_BLOCKS] >> 4
        half = ELEMENTS // 4
        blocks["codes"][..., 0::2] = low[..., :half] | low[..., half:] << 4
        blocks["codes"][..., 1::2] = high[..., :half] | high[..., half:] << 4
        data = blocks.view(np.uint8).reshape(len(rows), -1)
        data.flags.writeable = False
        return data

    def _rows(self, part: str, rows: range) -> NDArray[Any]:
        stored: NDArray[Any] = self.files[part][f"{self.name}.{part}"][self.expert][self.first :: self.step]
        return stored[rows.start : rows.stop]


def mxfp4_layers(path: Path, files: Files) -> dict[str, Mxfp4Layer]:
    """The experts' layers by the decoder's names of their weights. Raises ModelFileError for parts that do not fit."""
    layers: dict[str, Mxfp4Layer] = {}
    for full in files:
        for stored, projections in _PROJECTIONS.items():
            if full.endswith(f".{stored}{_BLOCKS}"):
                layers |= dict(
                    _of_all_experts(path, files, full.removesuffix(f".{stored}{_BLOCKS}"), projections, stored)
                )
    return layers


def _of_all_experts(
    path: Path, files: Files, name: str, projections: tuple[str, ...], stored: str
) -> Iterator[tuple[str, Mxfp4Layer]]:
    parts = _parts(path, files, name, stored)
    experts, outputs, groups = files[f"{name}.{stored}{_SCALES}"].entries[f"{name}.{stored}{_SCALES}"].shape
    if not experts * outputs * groups or outputs % len(projections):
        raise ModelFileError(f"{path}: '{name}.{stored}' has {experts} experts of {outputs} x {groups} blocks")
    shape = (outputs // len(projections), groups * ELEMENTS)
    for expert in range(experts):
        for first, projection in enumerate(projections):
            layer = Mxfp4Layer(name, shape, parts, expert, first, len(projections))
            yield f"{name}.{expert}.{projection}.weight", layer


def _parts(path: Path, files: Files, name: str, stored: str) -> Mapping[str, Any]:
    """The files of blocks and of exponents, whose shapes fit each other."""
    found = {f"{stored}{suffix}": files.get(f"{name}.{stored}{suffix}") for suffix in (_BLOCKS, _SCALES)}
    shapes = {}
    for part, file in found.items():
        if file is None:
            raise ModelFileError(f"{path}: '{name}.{stored}' in MXFP4 lacks its {part}")
        entry = file.entries[f"{name}.{part}"]
        if entry.dtype != "U8":
            raise ModelFileError(f"{path}: '{name}.{part}' is of kind {entry.dtype}; MXFP4 has U8")
        shapes[part] = entry.shape
    blocks, scales = shapes.values()
    if len(scales) != 3 or blocks != (*scales, ELEMENTS // 2):
        raise ModelFileError(
            f"{path}: '{name}.{stored}' has blocks {blocks} and scales {scales}; MXFP4 has scales [experts, outputs, "
            f"inputs / {ELEMENTS}] and {ELEMENTS // 2} bytes of blocks for each"
        )
    return found
