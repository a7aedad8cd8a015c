"""The one layout of 4-bit weights that the CUDA kernels read, and how AWQ, GPTQ and GGUF tensors are repacked to it.

Inputs are cut into blocks of 256. Word j of block b and output n holds eight codes: bits 4 i to 4 i + 3 are the code of
input 256 b + 32 i + j. So a word's i-th nibbles over j are 32 successive inputs, which is one step of a matrix
instruction and never more than one group, and a tile of outputs is one run of memory.

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

LAYOUT = "cuda-int4-1"
BLOCK = 256  # inputs per block
WORDS = 32  # per block and output
NIBBLES = 8
KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q4_Z")
_MIDDLE = 8  # the code that means zero where there is no offset
_GROUPS_PER_BLOCK = BLOCK // GROUP

Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Int4Arrays:
    """What a weight cache keeps: `codes` int32 [blocks, N, 32]; `scales` and `offsets` float16 [groups, N] or None.

    `groups` covers whole blocks: inputs beyond K have codes of 8 and whatever scale.
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
    """Repack a Q4_0, Q4_1, Q4_K or Q4_Z tensor [N, K], its codes unchanged.

    Groups are as large, up to a block, as the tensor's equal neighbours allow: AWQ and GPTQ tensors of groups of 128
    get those back. Raises ModelFileError for other kinds and for scales that float16 cannot hold.
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
    """float16 [N, groups + more], the last group repeated, so that padding never hinders merging."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelFileError(f"scales or offsets reach {np.abs(values).max():g}; float16 holds up to 65504")
    return np.pad(halves, ((0, 0), (0, groups)), mode="edge")


def _mergeable(scales: Halves, offsets: Halves) -> int:
    """How many groups of 32 share their scale and offset everywhere: 1, 2, 4 or 8."""
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
