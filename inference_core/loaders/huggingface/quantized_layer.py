"""Quantised linear layers of safetensors checkpoints, whatever their format.

AWQ and GPTQ checkpoints of 4 bits, and GPTQ of 8, are read as rows of blocks, without converting them to float. For a
linear layer of K inputs and N outputs, both store codes (`qweight`), zero points (`qzeros`) and scales per group
of inputs: w[n, k] = scale[g, n] * (code[k, n] - zero[g, n]), g the group of input k. An int32 holds P
= 32 / bits codes.
- GPTQ (Frantar et al. 2023, AutoGPTQ's files): `qweight` [K / P, N], P successive inputs per int32; `qzeros`
  [groups, N / P], P successive outputs, minus one in format "gptq", unchanged in "gptq_v2"; `g_idx` [K], the group
  of every input, in any order if columns were quantised in order of their activations ("act-order").
- AWQ (Lin et al. 2024, AutoAWQ's "gemm" files): `qweight` [K, N / 8] and `qzeros` [groups, N / 8], eight outputs in
  the order 0, 2, 4, 6, 1, 3, 5, 7 per int32; groups are contiguous.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.block_formats import ELEMENTS, q4_0_blocks, q4_z_blocks, q8_z_blocks, scaled_blocks
from inference_core.loaders.huggingface.safetensors_file import TensorFile
from inference_core.loaders.packed_tensor import Kind, PackedTensor

Files = Mapping[str, TensorFile]


@dataclass(frozen=True, slots=True)
class QuantizedLayer(ABC):
    """One linear layer `name`, [outputs, inputs] = `shape`."""

    name: str
    shape: tuple[int, int]
    files: Files
    """The file of each part, by suffix."""

    def tensor(self, path: Path) -> PackedTensor:
        """The layer's weights. Raises ModelFileError, naming `path`, if they cannot be read."""
        return self.cut(path, range(self.shape[0]), range(self.shape[1]))

    @abstractmethod
    def cut(self, path: Path, rows: range, columns: range) -> PackedTensor:
        """Read only these outputs and inputs; see `Checkpoint.cut`."""

    @property
    def row_unit(self) -> int:
        """The number of outputs packed together."""
        return 1

    @property
    @abstractmethod
    def column_unit(self) -> int:
        """The number of inputs packed together or sharing a scale; a scale of all inputs does not count."""

    def part(self, suffix: str) -> NDArray[Any]:
        """Read the part with this suffix."""
        return self.files[suffix][f"{self.name}.{suffix}"]


def packed_rows(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Blocks [outputs, blocks per row] as [outputs, bytes per row], read-only."""
    data = blocks.view(np.uint8).reshape(len(blocks), -1)
    data.flags.writeable = False
    return data


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


Ints = NDArray[np.int32]
Codes = NDArray[np.uint8]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PER_INT = 8
"""4-bit codes of an int32."""


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """The format of a checkpoint's linear layers."""

    method: Literal["awq", "gptq"]
    group_size: int | None
    """Inputs per scale; None for all inputs."""
    zero_offset: int = 0
    """Added to stored zero points, modulo 2 ** `bits`."""
    bits: Literal[4, 8] = 4

    @property
    def per_int(self) -> int:
        """Codes of an int32."""
        return 32 // self.bits

    def shape(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """[outputs, inputs] of the layer with a `qweight` of this shape."""
        rows, columns = qweight
        return (columns, rows * self.per_int) if self.method == "gptq" else (columns * self.per_int, rows)

    def part_shapes(self, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """The shape that each part of a layer [outputs, inputs] must have; `g_idx` may be missing."""
        outputs, inputs = shape
        groups = -(-inputs // (self.group_size or inputs))
        packed = (inputs // self.per_int, outputs) if self.method == "gptq" else (inputs, outputs // self.per_int)
        parts: dict[str, tuple[int, ...]] = {"qweight": packed, "qzeros": (groups, outputs // self.per_int)}
        parts["scales"] = (groups, outputs)
        return parts | ({"g_idx": (inputs,)} if self.method == "gptq" else {})

    def cut(self, parts: Mapping[str, NDArray[Any]], outputs: range, inputs: range) -> dict[str, NDArray[Any]]:
        """Cut a layer's parts to these outputs and inputs: views of the given arrays.

        Outputs and inputs are cut at multiples of `per_int`, inputs without `g_idx` also of the group.
        """
        packed_outputs = slice(outputs.start // self.per_int, outputs.stop // self.per_int)
        groups = slice(None)
        if "g_idx" not in parts and self.group_size:
            groups = slice(inputs.start // self.group_size, -(-inputs.stop // self.group_size))
        if self.method == "gptq":
            packed = (
                slice(inputs.start // self.per_int, inputs.stop // self.per_int),
                slice(outputs.start, outputs.stop),
            )
        else:
            packed = (slice(inputs.start, inputs.stop), packed_outputs)
        taken = {
            "qweight": parts["qweight"][packed],
            "qzeros": parts["qzeros"][groups, packed_outputs],
            "scales": parts["scales"][groups, outputs.start : outputs.stop],
        }
        return taken | ({"g_idx": parts["g_idx"][inputs.start : inputs.stop]} if "g_idx" in parts else {})

    def tensor(self, path: Path, name: str, parts: Mapping[str, NDArray[Any]]) -> PackedTensor:
        """Build the layer `name` from its arrays: blocks (Q4_Z and Q8_Z, or Q4_0 and S8 if symmetric), or dequantised
        (Q_F16) if groups are not runs of 32.

        `parts` have the shapes of `part_shapes`; scales are float16. Raises ModelFileError for impossible groups.
        """
        shape = self.shape(parts["qweight"].shape)
        groups = self._groups(path, name, parts, shape[1])
        runs = groups.reshape(-1, ELEMENTS) if shape[1] % ELEMENTS == 0 else None
        if runs is None or (runs != runs[:, :1]).any():
            return PackedTensor("Q_F16", shape, lambda: self._multiplied_out(parts, groups))
        # Symmetric files repeat the zero point in the middle, which Q4_0 and S8 blocks imply.
        symmetric = bool((self._zero_points(parts) == 2 ** (self.bits - 1)).all())
        kinds: tuple[Kind, Kind] = ("Q4_0", "Q4_Z") if self.bits == 4 else ("S8", "Q8_Z")
        kind = kinds[0] if symmetric else kinds[1]
        return PackedTensor(kind, shape, lambda: self._blocks(kind, parts, runs[:, 0]))

    def _blocks(self, kind: Kind, parts: Mapping[str, NDArray[Any]], groups: NDArray[np.intp]) -> NDArray[np.uint8]:
        """[outputs, bytes per row], read-only. `groups`: the group of each block."""
        codes, scales, zeros = self._unpacked(parts)
        scales, zeros = scales[:, groups], zeros[:, groups]
        if kind == "Q4_0":
            blocks = q4_0_blocks(codes, scales)
        elif kind == "S8":
            blocks = scaled_blocks((codes ^ np.uint8(128)).view(np.int8), scales.astype(np.float32))
        else:
            blocks = (q4_z_blocks if self.bits == 4 else q8_z_blocks)(codes, scales, zeros)
        return packed_rows(blocks)

    def _multiplied_out(self, parts: Mapping[str, NDArray[Any]], groups: NDArray[np.intp]) -> NDArray[np.float16]:
        """[outputs, inputs], read-only, rounded to float16 as in the methods' kernels. `groups`: of each input."""
        codes, scales, zeros = self._unpacked(parts)
        values = scales[:, groups].astype(np.float32) * (codes.astype(np.float32) - zeros[:, groups])
        data = values.astype(np.float16)
        data.flags.writeable = False
        return data

    def _unpacked(self, parts: Mapping[str, NDArray[Any]]) -> tuple[Codes, NDArray[np.float16], Codes]:
        """Codes [outputs, inputs], scales and zero points [outputs, groups]."""
        return self._codes(parts["qweight"]), np.ascontiguousarray(parts["scales"].T), self._zero_points(parts)

    def _zero_points(self, parts: Mapping[str, NDArray[Any]]) -> Codes:
        return (self._zeros(parts["qzeros"]) + np.uint8(self.zero_offset)) & np.uint8(2**self.bits - 1)

    def _codes(self, qweight: Ints) -> Codes:
        """[outputs, inputs]."""
        if self.method == "gptq":
            # [K / P, N] -> [K / P, N, P] -> [K, N]
            unpacked = unpack_codes(qweight, range(self.per_int), self.bits).transpose(0, 2, 1)
            unpacked = unpacked.reshape(-1, qweight.shape[1])
        else:
            unpacked = unpack_codes(qweight, _AWQ_ORDER).reshape(len(qweight), -1)
        return np.ascontiguousarray(unpacked.T)

    def _zeros(self, qzeros: Ints) -> Codes:
        """[outputs, groups]."""
        order = range(self.per_int) if self.method == "gptq" else _AWQ_ORDER
        return np.ascontiguousarray(unpack_codes(qzeros, order, self.bits).reshape(len(qzeros), -1).T)

    def _groups(self, path: Path, name: str, parts: Mapping[str, NDArray[Any]], inputs: int) -> NDArray[np.intp]:
        """The group of each input."""
        if "g_idx" not in parts:
            return np.arange(inputs) // (self.group_size or inputs)
        groups = parts["g_idx"].astype(np.intp)
        count = len(parts["scales"])
        if groups.min(initial=0) < 0 or groups.max(initial=0) >= count:
            raise ModelFileError(f"{path}: '{name}.g_idx' names groups outside of its {count}")
        return groups


def unpack_codes(packed: Ints, order: Any, bits: int = 4) -> Codes:
    """int32 [..., n] -> codes [..., n, 32 / bits]: the code at bit i * bits is element order[i] of its int32."""
    codes = np.empty((*packed.shape, 32 // bits), np.uint8)
    words = packed.view(np.uint32)
    for index, element in enumerate(order):
        codes[..., element] = (words >> (bits * index)) & (2**bits - 1)
    return codes
