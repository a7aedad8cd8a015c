"""What the 4-bit methods share: grids, files, the group size, symmetry, and which models they can store.

A grid is a scale and a zero point per group of inputs, with rounding to it. Layers are written as AutoAWQ and
AutoGPTQ do: the inverse of `loaders.huggingface.group_format`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.errors import QuantizationError
from inference_core.loaders.huggingface.quantized_layer import PER_INT
from inference_core.model_config import ModelConfig
from inference_core.quantization.method import QuantizationMethod, linear_inputs, linear_outputs

TOP_CODE = 15
MIDDLE = 8
# The smallest positive float16, used as the scale of a group of zeros.
_SMALLEST_SCALE = 2.0**-24


@dataclass(frozen=True, slots=True)
class Int4Grid:
    """w[n, k] ~ scales[n, g] * (code - zeros[n, g]) with codes 0 to 15, g = k // group_size."""

    scales: torch.Tensor
    """float32 [N, G], each a float16, as files hold them."""
    zeros: torch.Tensor
    """float32 [N, G], whole numbers."""
    group_size: int

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """The nearest codes, uint8 [N, K], of weights [N, K]."""
        steps = torch.round(self._grouped(weight) / self.scales[..., None]) + self.zeros[..., None]
        return steps.clamp_(0, TOP_CODE).to(torch.uint8).reshape(weight.shape)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """The values of codes [N, K], float32 [N, K]."""
        steps = self._grouped(codes.float()) - self.zeros[..., None]
        return (steps * self.scales[..., None]).reshape(codes.shape)

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """Weights [N, K] rounded to the nearest value of the grid: the baseline of every other method."""
        return self.values(self.codes(weight))

    def _grouped(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.reshape(len(matrix), -1, self.group_size)


def int4_grid(
    weight: torch.Tensor, group_size: int, *, symmetric: bool, lowest_zero: int = 0, shrink: torch.Tensor | float = 1.0
) -> Int4Grid:
    """The grid that covers each group of `weight` [N, K] from its minimum to its maximum, including zero.

    `symmetric`: symmetric range, with a zero point of 8. `lowest_zero`: the smallest zero point used. `shrink`: the
    part of the range to keep, one or [N, G]; larger weights are clipped.
    """
    groups = weight.reshape(len(weight), -1, group_size)
    low = groups.amin(dim=-1).clamp(max=0.0) * shrink
    high = groups.amax(dim=-1).clamp(min=0.0) * shrink
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    # Rounded before use, so that the codes match the scale stored in files.
    scales = ((high - low) / TOP_CODE).clamp(min=_SMALLEST_SCALE).half().float()
    if symmetric:
        zeros = torch.full_like(scales, float(MIDDLE))
    else:
        zeros = torch.round(-low / scales).clamp(lowest_zero, TOP_CODE)
    return Int4Grid(scales, zeros, group_size)


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


GROUP_SIZES = (128, 64, 32)


class Int4Method(QuantizationMethod):
    """4-bit weights in groups of `group_size` inputs; None: the largest of `GROUP_SIZES` that fits the model."""

    default_dtype = torch.float16

    def __init__(self, group_size: int | None = None, *, symmetric: bool = False) -> None:
        self.group_size = group_size
        self.symmetric = symmetric

    def check(self, config: ModelConfig) -> None:
        self.group_size = group_size_for(config, self.group_size)
        check_int4_shapes(config, self.group_size)

    def settings(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "symmetric": self.symmetric}


def group_size_for(config: ModelConfig, wanted: int | None) -> int:
    """`wanted`, or the largest of `GROUP_SIZES` that divides the inputs of every layer. Raises QuantizationError."""
    if wanted is not None:
        return wanted
    largest = next((size for size in GROUP_SIZES if all(inputs % size == 0 for inputs in linear_inputs(config))), None)
    if largest is None:
        raise QuantizationError(
            f"layers with {_listed(linear_inputs(config))} inputs cannot be cut into groups of "
            f"{_listed(GROUP_SIZES)}; use int8 or fp8"
        )
    return largest


def check_int4_shapes(config: ModelConfig, group_size: int) -> None:
    """Raises QuantizationError for layers that are not a whole number of groups, or of words of eight codes."""
    bad = [inputs for inputs in linear_inputs(config) if inputs % group_size]
    if group_size not in GROUP_SIZES or bad:
        fitting = [size for size in GROUP_SIZES if all(inputs % size == 0 for inputs in linear_inputs(config))]
        raise QuantizationError(
            f"groups of {group_size} do not divide the layers' {_listed(linear_inputs(config))} inputs; "
            f"{f'groups of {_listed(fitting)} do' if fitting else 'no usual group does: use int8 or fp8'}"
        )
    odd = [outputs for outputs in linear_outputs(config) if outputs % PER_INT]
    if odd:
        raise QuantizationError(f"{_listed(odd)} outputs do not fill words of {PER_INT} codes; use int8 or fp8")


def _listed(numbers: set[int] | list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(numbers)))
