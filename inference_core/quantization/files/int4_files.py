"""Writes 4-bit layers as AutoAWQ and AutoGPTQ do: the inverse of `loaders.huggingface.group_format`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.loaders.huggingface.group_format import PER_INT
from inference_core.quantization.methods.int4_grid import Int4Grid

_IN_ORDER = tuple(range(PER_INT))
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq_parts(codes: torch.Tensor, grid: Int4Grid) -> dict[str, torch.Tensor]:
    """Pack codes uint8 [N, K] and their grid in AutoAWQ's "gemm" layout; N must be a multiple of 8."""
    return {
        "qweight": _packed(codes.T, _AWQ_ORDER),
        "qzeros": _packed(grid.zeros.T, _AWQ_ORDER),
        "scales": grid.scales.T.half().contiguous(),
    }


def gptq_parts(codes: torch.Tensor, grid: Int4Grid) -> dict[str, torch.Tensor]:
    """Pack codes uint8 [N, K] and their grid in the layout "gptq", which stores zero points (1 to 15) minus one.
    N and K must be multiples of 8.
    """
    inputs = codes.shape[1]
    return {
        "qweight": _packed(codes, _IN_ORDER).T.contiguous(),
        "qzeros": _packed(grid.zeros.T - 1, _IN_ORDER),
        "scales": grid.scales.T.half().contiguous(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // grid.group_size,
    }


def _packed(numbers: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Numbers 0 to 15 [rows, 8 n] -> int32 [rows, n]; the bits from 4 i on hold number order[i] of a word's eight."""
    matrix: NDArray[np.uint32] = numbers.numpy().astype(np.uint32)
    eights = matrix.reshape(len(matrix), -1, PER_INT)
    words = np.zeros(eights.shape[:2], np.uint32)
    for nibble, element in enumerate(order):
        words |= eights[:, :, element] << np.uint32(4 * nibble)
    return torch.from_numpy(words.view(np.int32))
