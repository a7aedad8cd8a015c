"""The 4-bit codes of a stored matrix with one scale and one minimum per group of 32 inputs, as kernels read them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.ggml_blocks import nibbles, q4_k_codes, q4_k_steps
from inference_core.loaders.packed_tensor import PackedTensor

GROUP = 32


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """w[n, 32 g + i] = scale[n, g] * codes[n, 32 g + i] + minimum[n, g]; codes uint8 [N, K], 0..15."""

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32]


def group_codes(tensor: PackedTensor) -> GroupCodes:
    """The 4-bit codes of a Q4_0, Q4_1, Q4_K or Q4_Z tensor with their scales and minima per group of 32."""
    stored = tensor.blocks.reshape(-1)["codes"]
    codes = q4_k_codes(stored) if tensor.kind == "Q4_K" else nibbles(stored)
    scale, minimum = group_scales(tensor)
    return GroupCodes(codes.reshape(tensor.shape), scale.astype(np.float32), minimum.astype(np.float32))


def group_scales(tensor: PackedTensor) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """The scales and minima [N, groups] of `group_codes`: float16 where the file has them so, else float32."""
    blocks = tensor.blocks.reshape(-1)
    if tensor.kind == "Q4_K":
        scale, minimum = q4_k_steps(blocks)
    elif tensor.kind == "Q4_1":
        scale, minimum = blocks["d"], blocks["m"]
    else:
        zero = blocks["zero"].astype(np.float32) if tensor.kind == "Q4_Z" else np.float32(8)
        scale, minimum = blocks["d"], -blocks["d"].astype(np.float32) * zero
    rows, columns = tensor.shape
    return scale.reshape(rows, columns // GROUP), minimum.reshape(rows, columns // GROUP)
