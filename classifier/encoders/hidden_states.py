"""Hidden states of a turn: which model and layer an encoder reads, and the interface of sources."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a state is read: the mean over the first `max_tokens` tokens of a turn, without a chat template, of the
    residual stream after layer `layer` (the first is 1) of a model.

    `model` as for `resolve_model_path`. `fingerprint` over its file (`file_fingerprint`) and `compute`, the arithmetic
    (`ModelSpec.compute`), identify the model whose states were trained on.
    """

    model: str
    fingerprint: str
    compute: str
    layer: int
    max_tokens: int

    def cut(self, token_ids: list[int]) -> list[int]:
        """Return the tokens to read; a turn without any is read as token 0."""
        return token_ids[: self.max_tokens] or [0]


class StateSource(Protocol):
    """Computes the states of a `StateSpec`; thread-safe."""

    def warm(self) -> None:
        """Check the model, and load what the first turn would otherwise wait for.

        Raises `ArtefactError` if the model is missing or a different one.
        """

    def submit(self, turn: str) -> "Future[Float]":
        """Start to compute the state float32 [hidden] of one turn. Never blocks."""

    def states(self, turns: Sequence[str]) -> Float:
        """Return the states float32 [turns, hidden] synchronously. Raises `ArtefactError` if only `submit` is
        supported."""
