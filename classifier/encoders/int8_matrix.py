"""Matrices stored as int8 with one scale per row: a quarter of the size; rounding is idempotent."""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
# int8 [n, d] and the scale of each row, float32 [n].
Int8Rows = tuple[npt.NDArray[np.int8], Float]


def quantise(matrix: Float) -> Int8Rows:
    """Return (int8 [n, d], float32 [n]) such that row i is about int8[i] x scale[i]; a row of zeros has scale 0."""
    scale = (np.abs(matrix).max(axis=1, initial=0.0) / 127).astype(np.float32)
    safe = np.where(scale > 0, scale, 1.0)[:, None]
    return np.rint(matrix / safe).astype(np.int8), scale


def dequantise(values: npt.NDArray[np.int8], scale: Float) -> Float:
    """Return float32 [n, d] from the result of `quantise`."""
    return values.astype(np.float32) * scale[:, None]
