"""Hidden states of a turn: which model and layer an encoder reads, and the contract of whoever computes them."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a state is read: the mean over the first `max_tokens` tokens of a turn, without a chat template, of what
    layer `layer` (the first is 1) of a model leaves in the residual stream.

    `model` as `resolve_model_path` takes it; `fingerprint` over its file (`file_fingerprint`) and `compute`, the
    arithmetic (`ModelSpec.compute`), say what must be served for the states to be those that were trained on.
    """

    model: str
    fingerprint: str
    compute: str
    layer: int
    max_tokens: int

    def cut(self, token_ids: list[int]) -> list[int]:
        """The tokens that are looked at, never none: a turn without any is that of token 0."""
        return token_ids[: self.max_tokens] or [0]


class StateSource(Protocol):
    """Computes the states of a `StateSpec`; safe from many threads."""

    def warm(self) -> None:
        """Check, and load what the first turn would otherwise wait for.

        Raises `ArtefactError` if the model is not there or is another one."""

    def submit(self, turn: str) -> "Future[Float]":
        """Begin with the state float32 [hidden] of one turn. Never blocks."""

    def states(self, turns: Sequence[str]) -> Float:
        """The states float32 [turns, hidden], at once. Raises `ArtefactError` where only `submit` can compute them."""
