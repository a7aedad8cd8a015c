"""Kernel inputs of low-rank adapters: the factors of one layer in all slots, and which rows use which slot."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LowRankSlots:
    """The factors of the adapters in S slots for one fused projection of K inputs and N outputs, at fixed addresses.

    The projection has P parts (q, k and v): part p has the outputs `borders[p]` to `borders[p + 1]` and its own
    factors. `down` = A [S, P, R, K] and `up` = B^T [S, R, N], in the activations' dtype; only the first `ranks` int32
    [S, at least P] of their R ranks are used, the rest may hold anything. `scales` float32 has the shape of `ranks`.
    """

    down: torch.Tensor
    up: torch.Tensor
    scales: torch.Tensor
    ranks: torch.Tensor
    borders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LowRankRows:
    """Which rows of a step use which slot. `rows` int32 [at least their count] groups rows by slot; `tiles` int32
    [programs, 3] cuts it: (first index into `rows`, number of rows, at most `tile_rows`, slot). Slot `NO_SLOT` marks an
    empty tile. Rows in no tile have no adapter."""

    rows: torch.Tensor
    tiles: torch.Tensor
    tile_rows: int
