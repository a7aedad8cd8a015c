"""Random matrices in every encoding, and the native linear of one."""

import gguf
import numpy as np
import torch

from inference_core.linear.linear import PanelLinear
from inference_core.linear.panels import pack, panel_kind
from inference_core.loaders.packed_tensor import PackedTensor, float32_to_bfloat16
from inference_core.model_spec import Compute
from inference_core.native.cpu import Scheme

SCHEMES: dict[tuple[str, str], Scheme] = {
    ("int4", "int4-int8"): "int4-int8",
    ("int4", "int4"): "int4-float",
    ("int4-centred", "int4-int8"): "int4-centred-int8",
    ("int8", "int4-int8"): "int8-int8",
}


def packed(kind: str, rows: int, columns: int, seed: int = 0) -> PackedTensor:
    """A random matrix in the encoding `kind`, made by gguf's own quantiser where it has one."""
    weights = np.random.default_rng(seed).normal(0, 0.05, (rows, columns)).astype(np.float32)
    if kind == "F32":
        return PackedTensor("F32", (rows, columns), weights)
    if kind == "BF16":
        return PackedTensor("BF16", (rows, columns), float32_to_bfloat16(weights))
    if kind == "Q4_K":
        blocks = np.random.default_rng(seed).integers(0, 256, (rows, columns // 256, 144), np.uint8)
        blocks[..., :4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
        return PackedTensor("Q4_K", (rows, columns), blocks.reshape(rows, -1))
    data = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    return PackedTensor(kind, (rows, columns), data)  # type: ignore[arg-type]


def native(tensor: PackedTensor, compute: Compute, bias: torch.Tensor | None = None) -> PanelLinear:
    kind = panel_kind(tensor, compute)
    scheme = SCHEMES.get((kind, compute), kind)
    panels = torch.from_numpy(pack(tensor, kind))
    return PanelLinear(scheme, panels, tensor.shape[1], tensor.shape[0], bias)  # type: ignore[arg-type]
