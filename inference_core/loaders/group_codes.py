"""The 4-bit codes of a stored matrix with one scale and one minimum per group of 32 inputs, as kernels read them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.gguf_format.ggml_blocks import nibbles, q4_k_groups
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
    rows, columns = tensor.shape
    blocks = tensor.blocks.reshape(-1)
    if tensor.kind == "Q4_K":
        codes, scale, minimum = q4_k_groups(blocks)
    else:
        codes = nibbles(blocks["codes"])
        scale = blocks["d"].astype(np.float32)
        if tensor.kind == "Q4_1":
            minimum = blocks["m"].astype(np.float32)
        else:
            zero = blocks["zero"].astype(np.float32) if tensor.kind == "Q4_Z" else np.float32(8)
            minimum = -scale * zero
    groups = columns // GROUP
    return GroupCodes(codes.reshape(rows, columns), scale.reshape(rows, groups), minimum.reshape(rows, groups))
