"""Rotary scaling in model files: the settings of a config.json, in their older and their newer forms.

Llama 3.1's is recovered from the per-frequency factors that GGUF stores instead of its parameters.
"""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.model_config import RopeScaling


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> NDArray[np.float64]:
    """The divisor of each inverse frequency [head_dim / 2] under Llama 3.1's rule.

    Wavelengths below original / high keep their frequency, those above original / low are divided by `factor`, and in
    between the two are interpolated.
    """
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((scaling.original_max_position / wavelength - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / scaling.factor + blend)


def llama3_scaling(path: Path, factors: NDArray[np.float32], theta: float, head_dim: int) -> RopeScaling | None:
    """Recover the parameters from `factors`; None if all are 1. Raises ModelFileError if no parameters match.

    The factors determine (low, high, original) only up to a common scale; Llama's original length of 8192 fixes it.
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


MAX_CONTEXT, MAX_FACTOR = 1 << 32, 1_000_000
"""Positions before scaling, and how many times more there are after it; real models have a million and 128."""
KINDS = ("default", "linear", "llama3", "yarn", "longrope")


class Rope(msgspec.Struct):
    """`rope_scaling` of older files, `rope_parameters` of newer ones (which moved theta into it)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None


prepare_types(Rope)


def read_ropes(file: Path, settings: dict[str, Any] | None) -> tuple[Rope, Rope | None]:
    """The settings of full attention, and those of layers with a window where they have their own."""
    try:
        if settings is not None and "full_attention" in settings:
            full = msgspec.convert(settings["full_attention"], Rope)
            return full, msgspec.convert(settings.get("sliding_attention") or {}, Rope)
        return msgspec.convert(settings or {}, Rope), None
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file}: its rotary settings are not understood ({error})") from error


def rope_scaling(file: Path, rope: Rope, max_position: int, original: int | None) -> RopeScaling | None:
    """The frequency scaling of `rope`. `max_position`: the file's length, a default. `original`: the length before
    scaling as the file states it outside its rotary settings, which has precedence, as in transformers.
    Raises ModelFileError for a kind that is not supported, and for numbers without a finite result."""
    try:
        return _scaling(file, rope, max_position, original)
    except (ArithmeticError, ValueError) as error:
        raise ModelFileError(f"{file}: its rotary settings cannot be computed with: {error}") from error


def _scaling(file: Path, rope: Rope, max_position: int, original: int | None) -> RopeScaling | None:
    kind = rope.rope_type or rope.type or "default"
    length = original or rope.original_max_position_embeddings or max_position
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=1.0 if rope.factor is None else rope.factor)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=1.0 if rope.factor is None else rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position=length,
        )
    if kind == "yarn":
        factor = max_position / length if rope.factor is None else rope.factor
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=length,
            beta_fast=rope.beta_fast or 32.0,
            beta_slow=rope.beta_slow or 1.0,
            truncate=rope.truncate,
            attention_factor=_yarn_attention(rope, factor) if rope.attention_factor is None else rope.attention_factor,
        )
    if kind in ("longrope", "su"):
        return _longrope(file, rope, max_position, length)
    raise ModelFileError(f"{file}: rope scaling '{kind}' is not supported; supported are {', '.join(KINDS)}")


def _yarn_attention(rope: Rope, factor: float) -> float:
    """The root of the temperature that Peng et al. (2023), section 3.4, give for a context `factor` times as long."""

    def root(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return root(rope.mscale) / root(rope.mscale_all_dim)
    return root(1.0)


def _longrope(file: Path, rope: Rope, max_position: int, length: int) -> RopeScaling:
    if not rope.short_factor or not rope.long_factor:
        raise ModelFileError(f"{file}: rope scaling 'longrope' needs short_factor and long_factor")
    factor = max_position / length if rope.factor is None else rope.factor
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_max_position=length,
        attention_factor=usual if rope.attention_factor is None else rope.attention_factor,
        short=tuple(rope.short_factor),
        long=tuple(rope.long_factor),
    )


def max_context(path: Path, scaling: RopeScaling | None, stated: int) -> int:
    """Return the longest context: files of Qwen state (`stated`) the length before yarn stretches it. Raises
    ModelFileError for a factor that no model has."""
    if scaling is None:
        return stated
    if not (0 < scaling.factor <= MAX_FACTOR and scaling.original_max_position <= MAX_CONTEXT):
        raise ModelFileError(
            f"{path}: the rope scaling factor is {scaling.factor}, of {scaling.original_max_position} positions; a "
            f"positive factor of at most {MAX_FACTOR:,} and at most {MAX_CONTEXT:,} positions are supported"
        )
    return max(stated, int(scaling.original_max_position * scaling.factor)) if scaling.kind == "yarn" else stated
