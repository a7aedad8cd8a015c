"""The interface of embedding models: token ids in, unit vectors out; and the record of a request when it ends.

Embeddings from the core that serves the tiers are hidden states of its model, computed in the same steps. Those of
servers elsewhere follow a catalogue that changes while requests are served.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.base.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error, bad_request, mark_recorded
from gateway.base.inference_request import InferenceRequest
from inference_core.errors import CoreError, CoreLostError, InvalidRequestError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import ModelInfo
from inference_core.tokenization.load_tokenizer import shared_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from quality.records.record import Attempt, EmbeddingRecord
from tiers.catalog.catalog import CPU_CORE, Catalog, EmbeddingSpec
from tiers.catalog.tier_spec import Price
from tiers.errors import TierLostError
from tiers.tier import Usage, UsageMeter

if TYPE_CHECKING:
    from tiers.remote.embedding_client import EmbeddingClient


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


# Texts of one request in the core at a time: the scheduler shares its steps among all requests.
TOGETHER = 32


class CoreEmbedder:
    """An `Embedder` over `spec.model` of the CPU core."""

    def __init__(self, spec: EmbeddingSpec, cores: Mapping[str, CoreClient]) -> None:
        self.spec = spec
        self._core = cores.get(CPU_CORE)
        self._tokenizer: Tokenizer | None = None

    async def open(self) -> None:
        info = self._info()
        if self._tokenizer is None:
            self._tokenizer = await asyncio.to_thread(lambda: shared_tokenizer(resolve_model_path(info.model_path)))

    @property
    def vocabulary(self) -> int:
        return self._opened().vocab_size

    @property
    def max_tokens(self) -> int:
        return min(self.spec.max_tokens, self._info().max_context)

    @property
    def size(self) -> int:
        return self._info().hidden_size

    def least_tokens(self, text: str) -> int:
        return self._opened().least_tokens([text])

    def tokens(self, text: str) -> list[int]:
        return self._opened().encode(text, add_special_tokens=True)

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
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


def clients_for(before: Catalog, after: Catalog) -> "dict[str, EmbeddingClient]":
    """Return a client for each entry of a server elsewhere that `after` adds or changes in more than its price."""
    standing = {spec.name: _unpriced(spec) for spec in before.embeddings}
    changed = [spec for spec in after.embeddings if spec.is_remote and standing.get(spec.name) != _unpriced(spec)]
    if not changed:
        return {}
    from tiers.remote.embedding_client import EmbeddingClient

    return {spec.name: EmbeddingClient(spec) for spec in changed}


def computed_here(catalog: Catalog) -> list[EmbeddingSpec]:
    """Return the entries that this process or its core computes, without their prices."""
    return [_unpriced(spec) for spec in catalog.embeddings if not spec.is_remote]


def exchange_clients(
    embedders: "dict[str, Embedder | EmbeddingClient]", catalog: Catalog, clients: "Mapping[str, EmbeddingClient]"
) -> "list[EmbeddingClient]":
    """Make `embedders` what `catalog` lists, with `clients` for those that are new or changed, and return the clients
    that are replaced or gone, for the caller to close. Contains no await."""
    old = dict(embedders)
    embedders.clear()
    for spec in catalog.embeddings:
        embedders[spec.name] = embedder = clients.get(spec.name) or old.pop(spec.name)
        embedder.spec = spec
    return [cast("EmbeddingClient", client) for client in old.values()]


def _unpriced(spec: EmbeddingSpec) -> EmbeddingSpec:
    return msgspec.structs.replace(spec, input_usd_per_million=None, listed="")


def embedding_record(
    request: InferenceRequest,
    model: str,
    started: float,
    error: BaseException | None,
    tokens: int,
    cost_usd: float,
    replica: str | None,
    price: Price,
) -> EmbeddingRecord:
    """Return the record of `request`, which ends now.

    `started`: when `model` was asked, monotonic seconds; `error`: its failure, if any, not an Exception if the caller
    disconnected; `tokens`, `cost_usd` and `price` as charged.
    """
    now = time.monotonic()
    status: Literal["ok", "error", "aborted"] = "ok"
    http_status, said = 200, None
    if isinstance(error, Exception):
        mark_recorded(error)
        status, http_status, said = "error", as_api_error(error).status, f"{type(error).__name__}: {error}"
    elif error is not None:
        status, http_status = "aborted", CLIENT_CLOSED_REQUEST
    return EmbeddingRecord(
        request_id=request.request_id,
        created_at=request.created_at,
        requested_model=request.requested_model,
        key_id=request.key_id,
        status=status,
        http_status=http_status,
        error=said,
        model=model,
        prompt_tokens=tokens,
        cost_usd=cost_usd,
        e2e_ms=(now - request.generation.arrival) * 1e3,
        overhead_ms=(started - request.generation.arrival) * 1e3,
        tags=request.metadata,
        replica=replica,
        attempts=[Attempt(tier=0, model=model, status=status, cost_usd=cost_usd, prompt_tokens=tokens, price=price)],
    )
