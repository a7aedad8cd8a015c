"""Llama 3.1's rotary scaling, recovered from the per-frequency factors that GGUF stores instead of its parameters."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.model_config import RopeScaling


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> NDArray[np.float64]:
    """What each inverse frequency [head_dim / 2] is divided by under Llama 3.1's rule.

    Wavelengths below original / high keep their frequency, those above original / low are slowed by `factor`, and in
    between the slowed and the full frequency are blended.
    """
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((scaling.original_max_position / wavelength - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / scaling.factor + blend)


def llama3_scaling(path: Path, factors: NDArray[np.float32], theta: float, head_dim: int) -> RopeScaling | None:
    """The parameters whose rule gives `factors`; None if all are 1. Raises ModelFileError if none can.

    Only two of (low, high, original) are determined by the factors: a common scale cancels out. Llama's own original
    length of 8192 fixes it.
    """
    if factors.shape != (head_dim // 2,) or not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(f"{path}: rope_freqs.weight must hold {head_dim // 2} positive numbers")
    factor = float(factors.max())
    if np.allclose(factors, 1.0):
        return None
    scaling = RopeScaling(kind="llama3", factor=factor)
    between = (factors > 1.0) & (factors < factor)
    if between.sum() >= 2:
        wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
        blend = (factor / factors.astype(np.float64) - 1.0) / (factor - 1.0)
        slope, intercept = np.polyfit(1.0 / wavelength[between], blend[between], 1)
        span = scaling.original_max_position / slope
        low = -intercept * span
        scaling = RopeScaling(
            kind="llama3", factor=factor, low_freq_factor=round(low, 4), high_freq_factor=round(low + span, 4)
        )
    if not np.allclose(llama3_factors(scaling, theta, head_dim), factors, rtol=1e-3):
        raise ModelFileError(f"{path}: the factors in rope_freqs.weight do not follow Llama 3.1's rule")
    return scaling
