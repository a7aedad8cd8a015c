"""Embeddings from an encoder's checkpoint: texts of several requests are computed together, without padding."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classifier.encoders.checkpoint import checkpoint_files
from classifier.encoders.micro_batcher import MicroBatcher
from classifier.errors import CheckpointError
from gateway.base.errors import ApiError
from gateway.inference.embedding.embedder import Float
from gateway.inference.embedding.sentence_folder import SentenceFolder, read_sentence_folder
from inference_core.extras import require_extra
from tiers.catalog.catalog import EmbeddingSpec
from tiers.errors import CatalogError
from tiers.tier import Usage, UsageMeter

if TYPE_CHECKING:
    from classifier.encoders.pooled_transformer import PooledTransformer


class EncoderEmbedder:
    """An `Embedder` over the checkpoint in `spec.path`, loaded with the first request: torch takes seconds."""

    def __init__(self, spec: EmbeddingSpec) -> None:
        """Raises `CatalogError` if the folder is not a checkpoint, and `MissingExtraError`."""
        require_extra("local", "the encoder that makes embeddings")
        self.spec = spec
        try:
            self._folder = read_sentence_folder(Path(str(spec.path)).expanduser())
            checkpoint_files(self._folder.checkpoint)
        except CheckpointError as error:
            raise CatalogError(f"embeddings '{spec.name}'.path: {error}") from error
        self._loading = asyncio.Lock()
        self._model: PooledTransformer | None = None
        self._batcher = MicroBatcher[list[int], Float](lambda rows: list(self._opened().encode_ids(rows)))

    async def open(self) -> None:
        async with self._loading:
            if self._model is None:
                try:
                    self._model = await asyncio.to_thread(_load, self._folder, self.spec.max_tokens)
                except CheckpointError as error:
                    raise ApiError(503, f"{self.spec.name}: {error}", code="model_unavailable") from error

    @property
    def vocabulary(self) -> int:
        return self._opened().tokenizer.get_vocab_size()

    @property
    def max_tokens(self) -> int:
        return self._opened().max_tokens

    @property
    def size(self) -> int:
        return self._opened().hidden

    def least_tokens(self, text: str) -> int:
        return 0

    def tokens(self, text: str) -> list[int]:
        """See `Embedder.tokens`. Encodes as a batch, since the library holds the interpreter lock for a single text."""
        read = self._folder.prompt + text
        if self._folder.is_lower_case:
            read = read.lower()
        return list(self._opened().tokenizer.encode_batch([read])[0].ids)

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
        """See `Embedder.embed`; the batcher has no priorities, and caches nothing that a salt would protect."""
        states = [self._batcher.submit(row) for row in rows]

        def read() -> Usage:
            started = (state.running() or (state.done() and not state.cancelled()) for state in states)
            return Usage(prompt_tokens=sum(len(row) for row, was in zip(rows, started, strict=True) if was))

        meter.add(read)
        return np.stack(await asyncio.gather(*map(asyncio.wrap_future, states)))

    def _opened(self) -> "PooledTransformer":
        assert self._model is not None, "open it first"
        return self._model


def _load(folder: SentenceFolder, max_tokens: int) -> "PooledTransformer":
    from classifier.encoders.pooled_transformer import PooledTransformer

    most = max_tokens if folder.max_tokens is None else min(max_tokens, folder.max_tokens)
    return PooledTransformer.load(folder.checkpoint, max_tokens=most, pooling=folder.pooling)
