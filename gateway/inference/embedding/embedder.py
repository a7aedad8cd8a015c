"""The interface of embedding models: token ids in, unit vectors out."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gateway.base.errors import bad_request
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.tier import UsageMeter

Float = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Contract of both kinds; `tests/gateway/inference/api/test_embeddings.py` runs it against each.

    - A row's vector does not depend on what else is computed at the time, beyond rounding.
    - Cancelling `embed` frees what it holds.
    - `meter` always holds the number of tokens read so far.
    """

    spec: EmbeddingSpec

    async def open(self) -> None:
        """Prepare what the other methods need. Raises `ApiError` 503 if it is unavailable."""

    @property
    def vocabulary(self) -> int:
        """Upper bound of token ids."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of one text."""

    @property
    def size(self) -> int:
        """Dimensions of a vector."""

    def least_tokens(self, text: str) -> int:
        """Lower bound of the number of tokens, from the bytes of `text`; 0 if unknown."""

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text. Slow for long texts; not for the event loop."""

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
        """Return pooled hidden states float32 [rows, hidden]. Raises `ApiError`."""


def require_dimensions(model: Embedder, dimensions: int | None) -> None:
    """Raises `ApiError` 400 for vectors that `model` cannot produce."""
    name, size = model.spec.name, model.size
    if dimensions is None or dimensions == size:
        return
    if not model.spec.shortenable:
        raise bad_request(
            f"{name} gives {size} dimensions and was not trained for fewer: leave dimensions out.",
            "dimensions",
            "unsupported_parameter",
        )
    if dimensions > size:
        raise bad_request(f"{name} gives {size} dimensions at most.", "dimensions", "invalid_value")


def unit_vectors(states: Float, dimensions: int | None) -> Float:
    """Normalise states to vectors of length 1, using their first `dimensions` entries."""
    states = states[:, :dimensions]
    lengths = np.linalg.norm(states.astype(np.float64), axis=1, keepdims=True)
    vectors: Float = (states / np.maximum(lengths, 1e-12)).astype(np.float32)
    return vectors
