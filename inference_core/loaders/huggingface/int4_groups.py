"""4-bit weights as AWQ and GPTQ checkpoints store them, turned into rows of blocks without passing through float.

Both hold, for a linear layer of K inputs and N outputs, codes (`qweight`), zero points (`qzeros`) and scales per group
of inputs: w[n, k] = scale[g, n] * (code[k, n] - zero[g, n]), g the group of input k. Eight codes share an int32.
- GPTQ (Frantar et al. 2023, AutoGPTQ's files): `qweight` [K / 8, N], eight successive inputs per int32; `qzeros`
  [groups, N / 8], eight successive outputs, less one in files of the format "gptq", as they are in "gptq_v2";
  `g_idx` [K], the group of every input, in any order when columns were quantised by their activations ("act-order").
- AWQ (Lin et al. 2024, AutoAWQ's "gemm" files): `qweight` [K, N / 8] and `qzeros` [groups, N / 8], eight outputs in
  the order 0, 2, 4, 6, 1, 3, 5, 7 per int32; groups follow each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.zero_point_blocks import ELEMENTS, q4_0_blocks, q4_z_blocks
from inference_core.loaders.packed_tensor import Kind, PackedTensor

Ints = NDArray[np.int32]
Codes = NDArray[np.uint8]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PER_INT = 8


@dataclass(frozen=True, slots=True)
class Int4Format:
    """How a checkpoint packs its linear layers. `group_size`: inputs per scale, None for all of them.

    `zero_offset` is added to stored zero points, modulo 16.
    """

    method: Literal["awq", "gptq"]
    group_size: int | None
    zero_offset: int = 0

    def shape(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """[outputs, inputs] of the layer whose `qweight` [2 dimensions] has this shape."""
        rows, columns = qweight
        return (columns, rows * PER_INT) if self.method == "gptq" else (columns * PER_INT, rows)

    def part_shapes(self, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """The shape that each part of a layer [outputs, inputs] must have; `g_idx` may be missing."""
        outputs, inputs = shape
        groups = -(-inputs // (self.group_size or inputs))
        packed = (inputs // PER_INT, outputs) if self.method == "gptq" else (inputs, outputs // PER_INT)
        parts: dict[str, tuple[int, ...]] = {"qweight": packed, "qzeros": (groups, outputs // PER_INT)}
        parts["scales"] = (groups, outputs)
        return parts | ({"g_idx": (inputs,)} if self.method == "gptq" else {})

    def cut(self, parts: Mapping[str, NDArray[Any]], outputs: range, inputs: range) -> dict[str, NDArray[Any]]:
        """The parts of a layer of those outputs and inputs alone: views of the given ones.

        Outputs are cut at multiples of 8, inputs at multiples of 8 and, without `g_idx`, of the group.
        """
        packed_outputs = slice(outputs.start // PER_INT, outputs.stop // PER_INT)
        groups = slice(None)
        if "g_idx" not in parts and self.group_size:
            groups = slice(inputs.start // self.group_size, -(-inputs.stop // self.group_size))
        if self.method == "gptq":
            packed = (slice(inputs.start // PER_INT, inputs.stop // PER_INT), slice(outputs.start, outputs.stop))
        else:
            packed = (slice(inputs.start, inputs.stop), packed_outputs)
        taken = {
            "qweight": parts["qweight"][packed],
            "qzeros": parts["qzeros"][groups, packed_outputs],
            "scales": parts["scales"][groups, outputs.start : outputs.stop],
        }
        return taken | ({"g_idx": parts["g_idx"][inputs.start : inputs.stop]} if "g_idx" in parts else {})

    def tensor(self, path: Path, name: str, parts: Mapping[str, NDArray[Any]]) -> PackedTensor:
        """The layer `name` from its arrays: blocks (Q4_Z, or Q4_0 if symmetric), or multiplied out (Q4_F16) where
        groups are no runs of 32.

        `parts` have the shapes of `part_shapes`; scales are float16. Raises ModelFileError for impossible groups.
        """
        shape = self.shape(parts["qweight"].shape)
        groups = self._groups(path, name, parts, shape[1])
        runs = groups.reshape(-1, ELEMENTS) if shape[1] % ELEMENTS == 0 else None
        if runs is None or (runs != runs[:, :1]).any():
            return PackedTensor("Q4_F16", shape, lambda: self._multiplied_out(parts, groups))
        # Symmetric files repeat one zero point, for which there are blocks without any.
        kind: Kind = "Q4_0" if (self._zero_points(parts) == 8).all() else "Q4_Z"
        return PackedTensor(kind, shape, lambda: self._blocks(kind, parts, runs[:, 0]))

    def _blocks(self, kind: Kind, parts: Mapping[str, NDArray[Any]], groups: NDArray[np.intp]) -> NDArray[np.uint8]:
        """[outputs, bytes per row], read-only; `groups` is that of each block."""
        codes, scales, zeros = self._unpacked(parts)
        if kind == "Q4_0":
            blocks = q4_0_blocks(codes, scales[:, groups])
        else:
            blocks = q4_z_blocks(codes, scales[:, groups], zeros[:, groups])
        data = blocks.view(np.uint8).reshape(len(codes), -1)
        data.flags.writeable = False
        return data

    def _multiplied_out(self, parts: Mapping[str, NDArray[Any]], groups: NDArray[np.intp]) -> NDArray[np.float16]:
        """[outputs, inputs], read-only, rounded to float16 as the methods' own kernels do; `groups` of each input."""
        codes, scales, zeros = self._unpacked(parts)
        values = scales[:, groups].astype(np.float32) * (codes.astype(np.float32) - zeros[:, groups])
        data = values.astype(np.float16)
        data.flags.writeable = False
        return data

    def _unpacked(self, parts: Mapping[str, NDArray[Any]]) -> tuple[Codes, NDArray[np.float16], Codes]:
        """Codes [outputs, inputs], scales and zero points [outputs, groups]."""
        return self._codes(parts["qweight"]), np.ascontiguousarray(parts["scales"].T), self._zero_points(parts)

    def _zero_points(self, parts: Mapping[str, NDArray[Any]]) -> Codes:
        return (self._zeros(parts["qzeros"]) + np.uint8(self.zero_offset)) & np.uint8(0x0F)

    def _codes(self, qweight: Ints) -> Codes:
        """[outputs, inputs]."""
        if self.method == "gptq":
            # [K / 8, N] -> [K / 8, 8, N] -> [K, N]
            unpacked = unpack_codes(qweight, range(PER_INT)).transpose(0, 2, 1).reshape(-1, qweight.shape[1])
        else:
            unpacked = unpack_codes(qweight, _AWQ_ORDER).reshape(len(qweight), -1)
        return np.ascontiguousarray(unpacked.T)

    def _zeros(self, qzeros: Ints) -> Codes:
        """[outputs, groups]."""
        order = range(PER_INT) if self.method == "gptq" else _AWQ_ORDER
        return np.ascontiguousarray(unpack_codes(qzeros, order).reshape(len(qzeros), -1).T)

    def _groups(self, path: Path, name: str, parts: Mapping[str, NDArray[Any]], inputs: int) -> NDArray[np.intp]:
        """The group of each input."""
        if "g_idx" not in parts:
            return np.arange(inputs) // (self.group_size or inputs)
        groups = parts["g_idx"].astype(np.intp)
        count = len(parts["scales"])
        if groups.min(initial=0) < 0 or groups.max(initial=0) >= count:
            raise ModelFileError(f"{path}: '{name}.g_idx' names groups outside of its {count}")
        return groups


def unpack_codes(packed: Ints, order: Any) -> Codes:
    """int32 [..., n] -> 4-bit codes [..., n, 8]: the nibble at bits 4 i is element order[i] of its eight."""
    codes = np.empty((*packed.shape, PER_INT), np.uint8)
    bits = packed.view(np.uint32)
    for nibble, element in enumerate(order):
        codes[..., element] = (bits >> (4 * nibble)) & 0x0F
    return codes
