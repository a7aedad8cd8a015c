"""Embeddings from the core that serves the tiers: hidden states of its model, computed in the same steps."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from gateway.base.errors import ApiError
from gateway.inference.embedding.embedder import Float
from inference_core.errors import CoreError, CoreLostError, InvalidRequestError
from inference_core.loaders.model_path import resolve_model_path
from inference_core.protocol import ModelInfo
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import CPU_CORE
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.errors import TierLostError
from tiers.tier import Usage, UsageMeter

# Texts of one request in the core at a time: the scheduler shares its steps among all requests.
TOGETHER = 32


class CoreEmbedder:
    """An `Embedder` over `spec.model` of the CPU core."""

    def __init__(self, spec: EmbeddingSpec, cores: Mapping[str, CoreClient]) -> None:
        self.spec = spec
        self._core = cores.get(CPU_CORE)
        self._tokenizer: Tokenizer | None = None

    async def open(self) -> None:
        """See `Embedder.open`."""
        info = self._info()
        if self._tokenizer is None:
            self._tokenizer = await asyncio.to_thread(lambda: load_tokenizer(resolve_model_path(info.model_path)))

    @property
    def vocabulary(self) -> int:
        """See `Embedder.vocabulary`."""
        return self._opened().vocab_size

    @property
    def max_tokens(self) -> int:
        """See `Embedder.max_tokens`."""
        return min(self.spec.max_tokens, self._info().max_context)

    @property
    def size(self) -> int:
        """See `Embedder.size`."""
        return self._info().hidden_size

    def least_tokens(self, text: str) -> int:
        """See `Embedder.least_tokens`."""
        return self._opened().least_tokens([text])

    def tokens(self, text: str) -> list[int]:
        """See `Embedder.tokens`."""
        return self._opened().encode(text, add_special_tokens=True)

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
        """See `Embedder.embed`."""
        info = self._info()
        core, model, room = self._core, info.name, asyncio.Semaphore(TOGETHER)
        assert core is not None
        layer = self.spec.layer or info.num_layers
        read = 0
        meter.add(lambda: Usage(prompt_tokens=read))

        async def one(row: list[int]) -> Float:
            nonlocal read
            async with room:
                read += len(row)
                return await core.embed(model, row, layer, self.spec.pooling, priority=priority, salt=salt)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(row)) for row in rows]
        except BaseExceptionGroup as errors:
            raise _refusal(errors.exceptions[0]) from None
        return np.stack([task.result() for task in tasks])

    def _info(self) -> ModelInfo:
        info = None if self._core is None else self._core.models.get(str(self.spec.model))
        if info is None or not info.num_layers:
            raise ApiError(
                503, f"The core that computes {self.spec.name} is unavailable, or provides no hidden states.",
                code="model_unavailable",
            )  # fmt: skip
        return info

    def _opened(self) -> Tokenizer:
        assert self._tokenizer is not None, "open it first"
        return self._tokenizer


def _refusal(error: BaseException) -> BaseException:
    if not isinstance(error, CoreError):
        return error
    if isinstance(error, CoreLostError):
        return TierLostError(str(error))
    if isinstance(error, InvalidRequestError):
        return ApiError(400, str(error), param="input", code="invalid_value")
    return ApiError(503, f"The text could not be embedded now: {error}. Try again later.", code="model_unavailable")
