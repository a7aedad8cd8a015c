"""The 4-bit weight layout of the CUDA kernels; repacks AWQ, GPTQ and GGUF tensors to it.

Inputs are cut into blocks of 256. Word j of block b and output n holds eight codes: bits 4 i to 4 i + 3 are the code of
input 256 b + 32 i + j. The i-th nibbles over all j are therefore 32 successive inputs: one step of a matrix instruction
and within one group. A tile of outputs is contiguous in memory.

w[n, k] = scale[k / group, n] * (code[n, k] - 8) + offset[k / group, n], scales and offsets as float16. Symmetric
tensors (GGUF's Q4_0) have no offsets; one of AWQ or GPTQ is scale * (8 - zero point). float16 rounds offsets, and the
scales of Q4_K, by at most one part in 2**11, which is less than a hundredth of a step between codes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.group_codes import GROUP, group_codes
from inference_core.loaders.packed_tensor import PackedTensor

BLOCK = 256  # inputs per block
WORDS = 32  # per block and output
NIBBLES = 8
KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q4_Z")
_MIDDLE = 8  # the code of zero without an offset
_GROUPS_PER_BLOCK = BLOCK // GROUP

Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Int4Arrays:
    """Arrays of the weight cache: `codes` int32 [blocks, N, 32]; `scales` and `offsets` float16 [groups, N] or None.

    `groups` covers whole blocks: inputs beyond K have codes of 8 and any scale.
    """

    codes: NDArray[np.int32]
    scales: Halves
    offsets: Halves | None


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [N outputs, K inputs] of `Int4Arrays` as tensors on one device."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    in_features: int

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[1])

    @property
    def group_size(self) -> int:
        """Inputs per scale: 32, 64, 128 or 256."""
        return group_size(self.codes, self.scales)

    @classmethod
    def load(cls, arrays: Int4Arrays, in_features: int, device: torch.device | str) -> "Int4Weight":
        """Copy to `device`."""
        offsets = None if arrays.offsets is None else torch.tensor(arrays.offsets, device=device)
        return cls(
            torch.tensor(arrays.codes, device=device),
            torch.tensor(arrays.scales, device=device),
            offsets,
            in_features,
        )


def group_size(codes: torch.Tensor, scales: torch.Tensor) -> int:
    """Inputs per row of `scales` [groups, N], for `codes` [blocks, N, 32]."""
    return int(codes.shape[0]) * BLOCK // int(scales.shape[0])


def pack_int4(tensor: PackedTensor) -> Int4Arrays:
    """Repack a Q4_0, Q4_1, Q4_K or Q4_Z tensor [N, K]; codes are unchanged.

    Neighbouring groups with equal scales are merged, up to a block, so AWQ and GPTQ tensors get their groups of 128
    back. Raises ModelFileError for other kinds and for scales that float16 cannot hold.
    """
    if tensor.kind not in KINDS:
        raise ModelFileError(f"a tensor of kind {tensor.kind} has no 4-bit groups; kinds that have are {KINDS}")
    weights = group_codes(tensor)
    columns = weights.codes.shape[1]
    missing = -columns % BLOCK
    codes = np.pad(weights.codes, ((0, 0), (0, missing)), constant_values=_MIDDLE)
    scales = _padded_halves(weights.scale, missing // GROUP)
    offsets = _padded_halves(weights.minimum + np.float32(_MIDDLE) * weights.scale, missing // GROUP)
    merged = _mergeable(scales, offsets)
    # [N, groups] -> [groups, N]
    scales = np.ascontiguousarray(scales[:, ::merged].T)
    offsets = np.ascontiguousarray(offsets[:, ::merged].T)
    return Int4Arrays(_words(codes), scales, offsets if offsets.any() else None)


def _padded_halves(values: NDArray[np.float32], groups: int) -> Halves:
    """float16 [N, groups + more]; padding repeats the last group, so that it never prevents merging."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelFileError(f"scales or offsets reach {np.abs(values).max():g}; float16 holds up to 65504")
    return np.pad(halves, ((0, 0), (0, groups)), mode="edge")


def _mergeable(scales: Halves, offsets: Halves) -> int:
    """How many adjacent groups of 32 always have equal scales and offsets: 1, 2, 4 or 8."""
    count = 1
    while count < _GROUPS_PER_BLOCK:
        runs = [a.reshape(len(a), -1, 2 * count) for a in (scales, offsets)]
        if any((run != run[:, :, :1]).any() for run in runs):
            break
        count *= 2
    return count


def _words(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """[N, K] -> [blocks, N, 32]."""
    nibbles = codes.reshape(len(codes), -1, NIBBLES, WORDS).transpose(1, 0, 2, 3).astype(np.uint32)
    words = np.zeros((nibbles.shape[0], nibbles.shape[1], WORDS), np.uint32)
    for i in range(NIBBLES):
        words |= nibbles[:, :, i] << np.uint32(4 * i)
    return words.view(np.int32)
