"""Parts of a stored tensor, cut along its rows and columns without decoding or copying the rest."""

from collections.abc import Sequence

import numpy as np

from inference_core.errors import ModelFileError
from inference_core.loaders.packed_tensor import BLOCK_ELEMENTS, PackedTensor, row_bytes


def column_unit(tensor: PackedTensor) -> int:
    """Columns may be cut at multiples of this many only: the elements of a quantised block, which share a scale."""
    return BLOCK_ELEMENTS.get(tensor.kind, 1)


def cut(tensor: PackedTensor, rows: range, columns: range | None = None) -> PackedTensor:
    """The part [rows, columns] of a matrix, or [rows] of a vector; a view wherever the tensor is one.

    Raises ModelFileError if the part lies outside, or if a column border falls inside a quantised block.
    """
    whole = range(tensor.shape[-1])
    taken = whole if columns is None else columns
    if not 0 <= rows.start <= rows.stop <= tensor.shape[0] or not 0 <= taken.start <= taken.stop <= whole.stop:
        raise ModelFileError(f"rows {rows} and columns {taken} lie outside of a tensor of shape {tensor.shape}")
    if columns is None or len(tensor.shape) == 1:
        return PackedTensor(tensor.kind, (len(rows), *tensor.shape[1:]), lambda: tensor.data[rows.start : rows.stop])
    unit = column_unit(tensor)
    if taken.start % unit or taken.stop % unit:
        raise ModelFileError(f"columns {taken} cut blocks of {unit} weights that share a scale ({tensor.kind})")
    begin, end = (_data_columns(tensor, border) for border in (taken.start, taken.stop))
    return PackedTensor(tensor.kind, (len(rows), len(taken)), lambda: tensor.data[rows.start : rows.stop, begin:end])


def stack(tensors: Sequence[PackedTensor]) -> PackedTensor:
    """Tensors of one kind and width, one below the other; copied when the data are asked for."""
    if len(tensors) == 1:
        return tensors[0]
    shape = (sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])
    return PackedTensor(tensors[0].kind, shape, lambda: np.concatenate([t.data for t in tensors]))


def _data_columns(tensor: PackedTensor, columns: int) -> int:
    """Columns of the stored array that hold the first `columns` weights of a row."""
    if tensor.kind not in BLOCK_ELEMENTS:
        return columns
    size = row_bytes(tensor.kind, columns)
    assert size is not None  # the caller checked that these are whole blocks
    return size
