"""Moving a scale per channel from activations into weights without changing what a layer computes."""

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.layer import ATTENTION_OUTPUT, LayerTensors, Site


def tied_to_values(site: Site, figures: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Figures [K] of a site's channels, where channels that can only be scaled together get the greatest of theirs.

    Query heads that share a KV head gather the same values, so their channels share a scale.
    """
    if site is not ATTENTION_OUTPUT:
        return figures
    heads = figures.view(config.num_kv_heads, -1, config.head_dim)
    return heads.amax(dim=1, keepdim=True).expand_as(heads).reshape(-1)


def fold(tensors: LayerTensors, site: Site, scales: torch.Tensor, config: ModelConfig, dtype: torch.dtype) -> None:
    """Divide a site's activations by `scales` [K] > 0 where they are made, and multiply the weights that read them.

    In exact arithmetic nothing changes. A norm is rounded to `dtype`, in which it is stored, and the weights take up
    just what it was really divided by. `scales` are equal where `tied_to_values` says so.
    """
    weight = f"{site.source}.weight"
    if tensors[weight].dim() == 1:
        scales = _fold_into_norm(tensors, weight, scales, dtype)
    else:
        _fold_into_rows(tensors, site, scales, config)
    for linear in site.linears:
        tensors[f"{linear}.weight"] = tensors[f"{linear}.weight"] * scales


def _fold_into_norm(tensors: LayerTensors, name: str, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the norm's channels were really divided by, [K]."""
    norm = tensors[name]
    divided = (norm / scales).to(dtype).float()
    usable = (divided != 0) & torch.isfinite(divided)
    tensors[name] = torch.where(usable, divided, norm)
    return torch.where(usable, norm / torch.where(usable, divided, 1.0), 1.0)


def _fold_into_rows(tensors: LayerTensors, site: Site, scales: torch.Tensor, config: ModelConfig) -> None:
    rows = scales
    if site is ATTENTION_OUTPUT:
        rows = scales.view(config.num_kv_heads, -1, config.head_dim)[:, 0].reshape(-1)
    tensors[f"{site.source}.weight"] = tensors[f"{site.source}.weight"] / rows[:, None]
    bias = f"{site.source}.bias"
    if bias in tensors:
        tensors[bias] = tensors[bias] / rows
