"""The numbers that 4-bit weights can be: a scale and a zero point per group of inputs, and rounding to them."""

from dataclasses import dataclass

import torch

TOP_CODE = 15
MIDDLE = 8
# The smallest positive float16: a group of zeros has some scale too.
_SMALLEST_SCALE = 2.0**-24


@dataclass(frozen=True, slots=True)
class Int4Grid:
    """w[n, k] ~ scales[n, g] * (code - zeros[n, g]) with codes 0 to 15, g = k // group_size.

    `scales` float32 [N, G], each a float16, as files hold them; `zeros` float32 [N, G], whole numbers.
    """

    scales: torch.Tensor
    zeros: torch.Tensor
    group_size: int

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """The nearest codes, uint8 [N, K], of weights [N, K]."""
        steps = torch.round(self._grouped(weight) / self.scales[..., None]) + self.zeros[..., None]
        return steps.clamp_(0, TOP_CODE).to(torch.uint8).reshape(weight.shape)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """What codes [N, K] stand for, float32 [N, K]."""
        steps = self._grouped(codes.float()) - self.zeros[..., None]
        return (steps * self.scales[..., None]).reshape(codes.shape)

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """Weights [N, K] rounded to the nearest number of the grid: the baseline of every other method."""
        return self.values(self.codes(weight))

    def _grouped(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.reshape(len(matrix), -1, self.group_size)


def int4_grid(
    weight: torch.Tensor,
    group_size: int,
    *,
    symmetric: bool,
    lowest_zero: int = 0,
    shrink: torch.Tensor | float = 1.0,
) -> Int4Grid:
    """The grid that spans each group of `weight` [N, K] from its least to its greatest number, zero included.

    `symmetric`: as far to both sides, with a zero point of 8. `lowest_zero`: zero points below it are not used.
    `shrink`: the share of the span that is kept, one or [N, G]; what lies beyond is cut off to its end.
    """
    groups = weight.reshape(len(weight), -1, group_size)
    low = groups.amin(dim=-1).clamp(max=0.0) * shrink
    high = groups.amax(dim=-1).clamp(min=0.0) * shrink
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    # Rounded before it is used, so that the codes fit the scale that files hold.
    scales = ((high - low) / TOP_CODE).clamp(min=_SMALLEST_SCALE).half().float()
    if symmetric:
        zeros = torch.full_like(scales, float(MIDDLE))
    else:
        zeros = torch.round(-low / scales).clamp(lowest_zero, TOP_CODE)
    return Int4Grid(scales, zeros, group_size)
