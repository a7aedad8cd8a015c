"""The tables of rotary embeddings (Su et al. 2021), with the frequency scalings of long-context checkpoints."""

import math

import torch

from inference_core.loaders.gguf_format.rope_factors import llama3_factors
from inference_core.model_config import ModelConfig, RopeScaling


def rotary_table(config: ModelConfig, max_context: int) -> torch.Tensor:
    """float32 [tables x max_context, head_dim]: cosines of the half-split angles, then sines, by position. A second
    table is that of layers without positions, or of those with a window and a theta of their own
    (`ModelConfig.rope_of`).

    A factor of scores other than 1 / sqrt(head dim) is in the tables: its root in queries and in keys.
    """
    tables = [_table(config, _frequencies(config, max_context), max_context, _factor(config.rope_scaling))]
    half = (config.rotary_dim or config.head_dim) // 2
    if config.no_rope_layers:
        tables.append(_table(config, torch.zeros(half), max_context, 1.0))
    elif config.local_rope_theta is not None:
        tables.append(_table(config, _inverse(config.local_rope_theta, half), max_context, 1.0))
    return torch.cat(tables)


def _table(config: ModelConfig, inverse: torch.Tensor, max_context: int, factor: float) -> torch.Tensor:
    """The cosines and sines times `factor`; numbers of a head that are not rotated have the angle 0, and no factor."""
    angles = torch.outer(torch.arange(max_context).float(), inverse)
    still = torch.zeros(max_context, config.head_dim // 2 - len(inverse))
    cosines = torch.cat([angles.cos() * factor, torch.ones_like(still)], dim=1)
    sines = torch.cat([angles.sin() * factor, still], dim=1)
    scale = 1.0 if config.attention_scale is None else math.sqrt(config.attention_scale * math.sqrt(config.head_dim))
    return (torch.cat([cosines, sines], dim=1) * scale).contiguous()


def _inverse(theta: float, half: int) -> torch.Tensor:
    exponents = torch.arange(0, 2 * half, 2, dtype=torch.int64).float() / (2 * half)
    return 1.0 / theta**exponents


def _factor(scaling: RopeScaling | None) -> float:
    return 1.0 if scaling is None else scaling.attention_factor


def _frequencies(config: ModelConfig, max_context: int) -> torch.Tensor:
    """float32 [rotated numbers / 2]: radians from one position to the next."""
    size = config.rotary_dim or config.head_dim
    inverse, scaling = _inverse(config.rope_theta, size // 2), config.rope_scaling
    if scaling is None:
        return inverse
    if scaling.kind == "linear":
        return inverse / scaling.factor
    if scaling.kind == "llama3":
        return inverse / torch.from_numpy(llama3_factors(scaling, config.rope_theta, size)).float()
    if scaling.kind == "yarn":
        return _yarn(inverse, scaling, config.rope_theta)
    # One table serves all lengths: that of the longest context which is served decides.
    divisors = scaling.long if max_context > scaling.original_max_position else scaling.short
    return inverse / torch.tensor(divisors)


def _yarn(inverse: torch.Tensor, scaling: RopeScaling, theta: float) -> torch.Tensor:
    """Frequencies that turn more than `beta_fast` times within the original length stay, those with less than
    `beta_slow` turns are divided by the factor, with a ramp in between (Peng et al. 2023, section 3.2)."""
    half = len(inverse)

    def index_of(turns: float) -> float:
        length = scaling.original_max_position / (turns * 2 * math.pi)
        return half * math.log(length) / math.log(theta)

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half).float() - low) / ((high - low) or 0.001)).clamp(0, 1)
    return inverse / scaling.factor * ramp + inverse * (1 - ramp)
