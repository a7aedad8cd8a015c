"""The seam every embedding model stands behind: token ids in, unit vectors out."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gateway.errors import bad_request
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.tier import UsageMeter

Float = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Contract of both kinds; `tests/gateway/api/test_embeddings.py` runs it against each.

    - A row's vector does not depend on what else is computed at the time, beyond rounding.
    - Cancelling `embed` frees what it holds.
    - `meter` tells at any time how many tokens the model has been given to read.
    """

    spec: EmbeddingSpec

    async def open(self) -> None:
        """Have everything at hand that the other methods need. Raises `ApiError` 503 where that is away."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""

    @property
    def max_tokens(self) -> int:
        """Of one text."""

    @property
    def size(self) -> int:
        """Numbers of a vector."""

    def least_tokens(self, text: str) -> int:
        """No more than `tokens` gives, by the bytes of `text` alone; 0 where nothing is known of it."""

    def tokens(self, text: str) -> list[int]:
        """Ids of a text as the model reads it. Takes as long as the text is; not for the event loop."""

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
        """Pooled hidden states float32 [rows, hidden]. Raises `ApiError`."""


def require_dimensions(model: Embedder, dimensions: int | None) -> None:
    """Raises `ApiError` 400 for vectors that `model` cannot give."""
    name, size = model.spec.name, model.size
    if dimensions is None or dimensions == size:
        return
    if not model.spec.shortenable:
        raise bad_request(
            f"{name} gives {size} dimensions and was not trained to give fewer: leave dimensions out.",
            "dimensions",
            "unsupported_parameter",
        )
    if dimensions > size:
        raise bad_request(f"{name} gives {size} dimensions at most.", "dimensions", "invalid_value")


def unit_vectors(states: Float, dimensions: int | None) -> Float:
    """States as vectors of length 1, of their first `dimensions` entries."""
    states = states[:, :dimensions]
    lengths = np.linalg.norm(states.astype(np.float64), axis=1, keepdims=True)
    vectors: Float = (states / np.maximum(lengths, 1e-12)).astype(np.float32)
    return vectors
