"""A dense product written, or added, to memory that is there."""

import torch


def dense_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> None:
    """Write (or add) x W^T + bias to out: x [M, K], weight [N, K], bias [N], out [M, N], all of one dtype.

    `out` may be some columns of a wider matrix. What is added is added in the product's own precision, before it is
    rounded.
    """
    if accumulate:
        torch.addmm(out if bias is None else out + bias, x, weight.T, out=out)
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)
