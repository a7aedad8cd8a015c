"""Weights of 8 bits, INT8 or FP8 E4M3, with a scale per output channel or per block of 128 x 128, as checkpoints do.

Channel scales: Dettmers et al., "LLM.int8()", 2022, and Xiao et al., "SmoothQuant", 2023. Block scales: DeepSeek-AI,
"DeepSeek-V3 Technical Report", 2024, section 3.3.
"""

from dataclasses import dataclass

import torch

SCALE_BLOCK = 128
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True, slots=True)
class EightBitWeight:
    """`codes` int8 or float8_e4m3fn [N, K]; `scales` float32 [N], or [ceil(N / 128), ceil(K / 128)] (E4M3 only)."""

    codes: torch.Tensor
    scales: torch.Tensor

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        blocks = (-(-outputs // SCALE_BLOCK), -(-inputs // SCALE_BLOCK))
        allowed = [(outputs,), blocks] if self.codes.dtype == torch.float8_e4m3fn else [(outputs,)]
        if tuple(self.scales.shape) not in allowed:
            raise ValueError(
                f"scales of shape {tuple(self.scales.shape)} for {self.codes.dtype} codes [{outputs}, {inputs}]; "
                f"allowed are {' and '.join(map(str, allowed))}"
            )

    @property
    def blockwise(self) -> bool:
        return bool(self.scales.dim() == 2)


def largest(dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is used. Raises ValueError where there is none."""
    if dtype not in _LARGEST:
        raise ValueError(f"cannot quantise to {dtype}; possible are {' and '.join(map(str, _LARGEST))}")
    return _LARGEST[dtype]


def quantize_channels(weight: torch.Tensor, dtype: torch.dtype) -> EightBitWeight:
    """The nearest codes to a floating weight [N, K], one scale per output."""
    values = weight.float()
    return EightBitWeight(*rounded(values, values.abs().amax(dim=1, keepdim=True), dtype))


def quantize_blocks(weight: torch.Tensor) -> EightBitWeight:
    """The nearest E4M3 codes to a floating weight [N, K], one scale per block of 128 x 128."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % SCALE_BLOCK, 0, -outputs % SCALE_BLOCK))
    blocks = padded.unflatten(0, (-1, SCALE_BLOCK)).unflatten(2, (-1, SCALE_BLOCK))
    peak = blocks.abs().amax(dim=(1, 3))
    spread = spread_blocks(peak, outputs, inputs)
    codes, _ = rounded(weight.float(), spread, torch.float8_e4m3fn)
    return EightBitWeight(codes, peak / largest(torch.float8_e4m3fn))


def spread_blocks(scales: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """[ceil(N / 128), ceil(K / 128)] -> [N, K], each entry over its block."""
    wide = scales.repeat_interleave(SCALE_BLOCK, dim=0).repeat_interleave(SCALE_BLOCK, dim=1)
    return wide[:outputs, :inputs]


def rounded(values: torch.Tensor, peak: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 values, of magnitudes up to `peak` (broadcast), as codes of `dtype` and scales (peak's columns).

    Ties go to even codes.
    """
    limit = largest(dtype)
    inverse = torch.where(peak > 0, limit / peak, 0.0)
    scaled = (values * inverse).clamp(-limit, limit)
    codes = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return codes, (peak / limit)[..., 0]
