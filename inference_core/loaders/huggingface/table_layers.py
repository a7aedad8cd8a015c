"""Layers of 4-bit floating-point codes: those of bitsandbytes (NF4, FP4, SPEC QZ-07), and gpt-oss' experts in MXFP4.

bitsandbytes: of a layer X, `X.weight` holds two codes per byte, row after row, and X.weight.PART the rest: `absmax`,
the scale of every run of `blocksize` weights; `quant_map` float32 [16], the table;
`quant_state.bitsandbytes__nf4` (or fp4), JSON with the shape. With double quantisation `absmax` holds 8-bit codes of
its own: absmax = nested_quant_map[code] * nested_absmax[run of `nested_blocksize`] + nested_offset.
w = quant_map[code] * absmax.

MXFP4: blocks of 16 bytes and their exponents, for all experts in one tensor. `experts.gate_up_proj_blocks` is uint8
[experts, outputs, inputs / 32, 16], `…_scales` uint8 [experts, outputs, inputs / 32]; outputs of gate and up take
turns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.loaders.block_formats import ELEMENTS, MXFP4, TABLE_BLOCK, TABLES
from inference_core.loaders.huggingface.quantized_layer import Files, QuantizedLayer, check_boundaries, packed_rows
from inference_core.loaders.packed_tensor import Kind, PackedTensor

_STATE = ".weight.quant_state.bitsandbytes__"
_KINDS: dict[str, Kind] = {"nf4": "NF4", "fp4": "FP4"}
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")


class _State(msgspec.Struct, forbid_unknown_fields=True):
    quant_type: str
    blocksize: int
    dtype: str
    shape: tuple[int, int]
    nested_blocksize: int | None = None
    nested_dtype: str | None = None
    nested_offset: float | None = None


prepare_types(_State)


@dataclass(frozen=True, slots=True)
class TableLayer(QuantizedLayer):
    """Exact in float32: bitsandbytes rounds the same products to its compute dtype."""

    state: _State

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        check_boundaries(path, self, rows, columns)
        kind = _KINDS[self.state.quant_type]
        return PackedTensor(kind, (len(rows), len(columns)), lambda: self._blocks(rows, columns))

    @property
    def column_unit(self) -> int:
        """32: runs that share a scale go on from row to row, and each piece of 32 gets a copy of it."""
        return ELEMENTS

    def _blocks(self, rows: range, columns: range) -> NDArray[np.uint8]:
        inputs = self.shape[1]
        codes = self._flat("weight").view(np.uint8).reshape(-1, inputs // 2)
        starts = np.arange(columns.start, columns.stop, ELEMENTS)
        runs = (np.arange(rows.start, rows.stop)[:, None] * inputs + starts) // self.state.blocksize
        blocks = np.empty(runs.shape, TABLE_BLOCK)
        blocks["d"] = self._scales(runs)
        taken = codes[rows.start : rows.stop, columns.start // 2 : columns.stop // 2]
        blocks["codes"] = taken.reshape(*runs.shape, ELEMENTS // 2)
        return packed_rows(blocks)

    def _scales(self, runs: NDArray[np.int64]) -> NDArray[np.float32]:
        stored = self._flat("weight.absmax")[runs]
        if self.state.nested_blocksize is None:
            scales: NDArray[np.float32] = stored
            return scales
        nested = self._flat("weight.nested_absmax")[runs // self.state.nested_blocksize]
        scales = self._flat("weight.nested_quant_map")[stored] * nested + np.float32(self.state.nested_offset or 0.0)
        return scales

    def _flat(self, part: str) -> NDArray[Any]:
        return self.part(part).reshape(-1)


def table_layers(path: Path, files: Files) -> dict[str, TableLayer]:
    """The layers by the name of their weight. Raises ModelFileError for parts that do not fit."""
    names = [name.partition(_STATE)[::2] for name in files if _STATE in name]
    return {f"{name}.weight": _layer(path, files, name, kind) for name, kind in names}


def _layer(path: Path, files: Files, name: str, kind: str) -> TableLayer:
    key = f"{name}{_STATE}{kind}"
    try:
        state = msgspec.json.decode(files[key][key].tobytes(), type=_State)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{path}: '{key}' is not understood ({error})") from error
    size = state.shape[0] * state.shape[1]
    if (
        state.quant_type != kind
        or kind not in _KINDS
        or state.blocksize < ELEMENTS
        or state.blocksize % ELEMENTS
        or min(state.shape) < 1
        or state.shape[1] % ELEMENTS
    ):
        raise ModelFileError(
            f"{path}: '{name}' is {state.quant_type} {state.shape} with a scale per {state.blocksize}; nf4 and fp4 are "
            f"read, with inputs and blocks in multiples of {ELEMENTS}"
        )
    runs = -(-size // state.blocksize)
    expected: dict[str, tuple[tuple[str, ...], int]] = {
        "weight.absmax": (("F32",), runs),
        "weight.quant_map": (("F32",), 16),
    }
    if state.nested_blocksize is not None:
        if state.nested_blocksize < 1:
            raise ModelFileError(f"{path}: '{name}' has scales in blocks of {state.nested_blocksize}")
        expected["weight.absmax"] = (("U8",), runs)
        expected |= dict(zip(_NESTED, ((("F32",), -(-runs // state.nested_blocksize)), (("F32",), 256)), strict=True))
    for part, (dtypes, count) in expected.items():
        _check(path, files, f"{name}.{part}", dtypes, count)
    weight = files.get(f"{name}.weight")
    if weight is None or weight.entries[f"{name}.weight"].num_bytes * 2 != size:
        raise ModelFileError(f"{path}: '{name}.weight' does not hold the {size} codes of {state.shape}")
    stated = files[f"{name}.weight.quant_map"][f"{name}.weight.quant_map"].reshape(-1)
    if not np.array_equal(stated, TABLES[_KINDS[kind]]):
        raise ModelFileError(f"{path}: '{name}.weight.quant_map' is not the table of {kind}")
    parts = ["weight", f"weight.quant_state.bitsandbytes__{kind}", *expected]
    return TableLayer(name, state.shape, {part: files[f"{name}.{part}"] for part in parts}, state)


def _check(path: Path, files: Files, full: str, dtypes: tuple[str, ...], count: int) -> None:
    entry = files[full].entries[full] if full in files else None
    if entry is None or entry.dtype not in dtypes or int(np.prod(entry.shape)) != count:
        problem = "is missing" if entry is None else f"is {entry.dtype} {entry.shape}"
        raise ModelFileError(f"{path}: '{full}' {problem}; {count} numbers of {dtypes[0]} are needed")


MX_ELEMENTS = 32
_BLOCKS, _SCALES = "_blocks", "_scales"
_PROJECTIONS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True, slots=True)
class Mxfp4Layer(QuantizedLayer):
    """One expert's linear layer: outputs `first`, `first` + `step`, … of `expert`; `name` is that of all experts."""

    expert: int
    first: int
    step: int

    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        check_boundaries(path, self, rows, columns)
        return PackedTensor("MXFP4", (len(rows), len(columns)), lambda: self._blocks(rows, columns))

    @property
    def column_unit(self) -> int:
        """Inputs that share an exponent."""
        return MX_ELEMENTS

    def _blocks(self, rows: range, columns: range) -> NDArray[np.uint8]:
        groups = slice(columns.start // MX_ELEMENTS, columns.stop // MX_ELEMENTS)
        stored = {part[-len(_BLOCKS) :]: self._rows(part, rows)[:, groups] for part in self.files}
        blocks = np.empty(stored[_SCALES].shape, MXFP4)
        blocks["exponent"] = stored[_SCALES]
        # A byte of the file has two neighbours; one of GGML's has a number and the one 16 places behind it.
        low, high = stored[_BLOCKS] & 0x0F, stored[_BLOCKS] >> 4
        half = MX_ELEMENTS // 4
        blocks["codes"][..., 0::2] = low[..., :half] | low[..., half:] << 4
        blocks["codes"][..., 1::2] = high[..., :half] | high[..., half:] << 4
        return packed_rows(blocks)

    def _rows(self, part: str, rows: range) -> NDArray[Any]:
        stored: NDArray[Any] = self.part(part)[self.expert][self.first :: self.step]
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
    shape = (outputs // len(projections), groups * MX_ELEMENTS)
    for expert in range(experts):
        for first, projection in enumerate(projections):
            layer = Mxfp4Layer(name, shape, parts, expert, first, len(projections))
            yield f"{name}.{expert}.{projection}.weight", layer


def _parts(path: Path, files: Files, name: str, stored: str) -> Mapping[str, Any]:
    """The files of blocks and of exponents, whose shapes fit each other."""
    parts = {f"{stored}{suffix}": files.get(f"{name}.{stored}{suffix}") for suffix in (_BLOCKS, _SCALES)}
    shapes = {}
    for part, file in parts.items():
        if file is None:
            raise ModelFileError(f"{path}: '{name}.{stored}' in MXFP4 lacks its {part}")
        entry = file.entries[f"{name}.{part}"]
        if entry.dtype != "U8":
            raise ModelFileError(f"{path}: '{name}.{part}' is of kind {entry.dtype}; MXFP4 has U8")
        shapes[part] = entry.shape
    blocks, scales = shapes.values()
    if len(scales) != 3 or blocks != (*scales, MX_ELEMENTS // 2):
        raise ModelFileError(
            f"{path}: '{name}.{stored}' has blocks {blocks} and scales {scales}; MXFP4 has scales [experts, outputs, "
            f"inputs / {MX_ELEMENTS}] and {MX_ELEMENTS // 2} bytes of blocks for each"
        )
    return parts
