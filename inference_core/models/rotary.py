"""The table of rotary embeddings (Su et al. 2021), with the frequency scalings of long-context checkpoints."""

import torch

from inference_core.loaders.gguf_format.rope_factors import llama3_factors
from inference_core.model_config import ModelConfig


def rotary_table(config: ModelConfig, max_context: int) -> torch.Tensor:
    """float32 [max_context, head_dim]: cosines of the half-split angles, then sines."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inverse = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        inverse /= scaling.factor
    elif scaling is not None:
        inverse /= torch.from_numpy(llama3_factors(scaling, config.rope_theta, config.head_dim)).float()
    angles = torch.outer(torch.arange(max_context).float(), inverse)
    return torch.cat([angles.cos(), angles.sin()], dim=1).contiguous()
