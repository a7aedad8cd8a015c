"""Parts of a matrix cut from a checkpoint, against the same parts of the whole."""

import numpy as np

from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import dequantize


def check_parts(checkpoint: Checkpoint, name: str) -> None:
    """Cut the tensor `name` at every unit of its rows and of its columns, and in the middle of both."""
    whole = checkpoint.tensors[name]
    values, (rows, columns) = dequantize(whole), whole.shape
    row_unit, column_unit = checkpoint.row_unit(name), checkpoint.column_unit(name)
    bands = [range(begin, min(begin + 16 * row_unit, rows)) for begin in range(0, rows, 16 * row_unit)]
    strips = [range(begin, min(begin + column_unit, columns)) for begin in range(0, columns, column_unit)]
    parts = [(band, None) for band in bands] + [(range(rows), strip) for strip in strips] + [(bands[-1], strips[-1])]
    for band, strip in parts:
        part = checkpoint.cut(name, band, strip)
        cut_rows = values[band.start : band.stop]
        expected = cut_rows if strip is None else cut_rows[:, strip.start : strip.stop]
        assert (part.kind, part.shape) == (whole.kind, expected.shape)
        np.testing.assert_array_equal(dequantize(part), expected, err_msg=f"{name} {band} {strip}")
