"""Random 4-bit tensors in every kind that checkpoints come in; NumPy alone, for a bare machine."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.loaders.block_formats import q4_z_blocks
from inference_core.loaders.packed_tensor import BLOCK_DTYPES, BLOCK_ELEMENTS, Kind, PackedTensor

KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q4_Z, groups of 32", "Q4_Z, groups of 128")


def int4_tensor(kind: str, outputs: int, inputs: int, seed: int = 0) -> PackedTensor:
    """[outputs, inputs]; those of zero points are what AWQ and GPTQ layers become."""
    rng = np.random.default_rng(seed)
    if kind.startswith("Q4_Z"):
        blocks = _zero_point_blocks(rng, int(kind.rsplit(" ", 1)[1]), outputs, inputs)
        return PackedTensor("Q4_Z", (outputs, inputs), blocks.view(np.uint8).reshape(outputs, -1))
    return _ggml_tensor(rng, kind, outputs, inputs)  # type: ignore[arg-type]


def _ggml_tensor(rng: np.random.Generator, kind: Kind, outputs: int, inputs: int) -> PackedTensor:
    """Random bytes, but for scales and minima of a usual size."""
    shape, dtype = (outputs, inputs // BLOCK_ELEMENTS[kind]), BLOCK_DTYPES[kind]
    blocks = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    for field, low, high in (("d", 0.002, 0.02), ("m", -0.15, -0.02), ("dmin", 0.0005, 0.005)):
        if field in (dtype.names or ()):
            scale = 1 / 32 if kind == "Q4_K" and field == "d" else 1
            blocks[field] = rng.uniform(low, high, shape).astype(np.float16) * np.float16(scale)
    return PackedTensor(kind, (outputs, inputs), blocks.view(np.uint8).reshape(outputs, -1))


def _zero_point_blocks(rng: np.random.Generator, group: int, outputs: int, inputs: int) -> NDArray[Any]:
    groups = -(-inputs // group)
    scales = rng.uniform(0.002, 0.02, (outputs, groups)).astype(np.float16)
    zeros = rng.integers(0, 16, (outputs, groups), np.uint8)
    codes = rng.integers(0, 16, (outputs, inputs), np.uint8)
    wide = [np.repeat(a, group // 32, axis=1)[:, : inputs // 32] for a in (scales, zeros)]
    return q4_z_blocks(codes, *wide)
