"""Low-rank adapters as kernels read them: the factors of one layer in all slots, and which rows go through which."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LowRankSlots:
    """What the adapters in S slots add to one fused projection of K inputs and N outputs, at addresses that stay.

    The projection has P parts (q, k and v): part p is the outputs `borders[p]` to `borders[p + 1]`, and has factors of
    its own. `down` = A [S, P, R, K] and `up` = B^T [S, R, N], in the activations' dtype; of their R ranks the first
    `ranks` int32 [S, at least P] count, and what lies beyond may be anything. `scales` float32 is shaped as `ranks`.
    """

    down: torch.Tensor
    up: torch.Tensor
    scales: torch.Tensor
    ranks: torch.Tensor
    borders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LowRankRows:
    """Which rows of a step go through which slot. Rows of the same slot lie together in `rows` int32 [at least their
    count]; `tiles` int32 [programs, 3] cuts them: (first place in `rows`, at most `tile_rows` of them, slot), where
    slot `NO_SLOT` is a tile without any. Rows in no tile have no adapter."""

    rows: torch.Tensor
    tiles: torch.Tensor
    tile_rows: int
