"""The asyncio interface of a core, the same for every transport (a thread, a Unix socket, TCP)."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from inference_core.errors import CoreGoneError, KVTransferError
from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    KnobsSet,
    KnobValue,
    ModelInfo,
    SamplingParams,
    SequenceOutput,
)
from inference_core.protocol.commands import EvidenceRequest, Pooling
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.outputs import failure

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CoreClient(ABC):
    """The contract of every transport; `tests/inference_core/transport/test_core_client.py` runs it against each.

    - `generate` yields every output of the request in order and ends after the last choice finished.
    - Closing the iterator early (`aclose`, cancellation) aborts the request within one step.
    - A choice that `abort_choice` ends gets a last output with `finish_reason` "abort"; the others continue.
    - All outputs of one step reach the event loop in one wake-up.
    - When the core dies, every open iterator raises `CoreLostError`; when it is stopped, `CoreGoneError`. Later calls
      raise `CoreGoneError` at once.
    - A request the core refuses ends with one output whose `finish_reason` is "error"; a choice that fails
      ends its whole request in the same way.
    - After `CoreGoneError`, `start` may be called again to reconnect.
    """

    @abstractmethod
    async def start(self) -> None:
        """Connect; returns when `models` is known. Raises `CoreGoneError`."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; aborts everything this client has in flight. Idempotent."""

    @property
    def gone(self) -> str | None:
        """Why the core is known to be unreachable; None while it is not."""
        return None

    @property
    def stuck(self) -> str | None:
        """Why the core does not advance, by its watchdog's last report; None while it does."""
        return None

    @property
    def died(self) -> bool:
        """Whether the core ended without having been stopped, or its connection without having been closed. False
        where that is not known."""
        return False

    @property
    @abstractmethod
    def models(self) -> dict[str, ModelInfo]:
        """The models of the core by name."""

    @abstractmethod
    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        """Submit `request` and iterate over its outputs."""

    async def embed(
        self,
        model: str,
        prompt_token_ids: list[int],
        layer: int,
        pooling: Pooling = "mean",
        *,
        priority: int = 1,
        deadline: float | None = None,
        salt: str = "",
    ) -> "npt.NDArray[np.float32]":
        """Return the prompt's hidden state float32 [hidden] after `layer` layers, the only ones computed; its blocks
        are freed at once. `deadline` is strict.

        Cancellation frees its blocks within one step. Raises `InvalidRequestError` for an invalid prompt, model or
        layer,
        `QueueFullError` if the deadline cannot be met, `CoreGoneError`, and `CoreError` if it failed.
        """
        request = AddRequest(
            request_id=f"embed-{uuid4().hex}",
            model=model,
            prompt_token_ids=prompt_token_ids,
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            priority=priority,
            deadline=deadline,
            strict_deadline=deadline is not None,
            salt=salt,
            speculate=False,
            evidence=EvidenceRequest(layer=layer, pooling=pooling),
            embed=True,
        )
        # Imported now: a core's process is started before anything that takes long to import.
        import numpy as np

        async with aclosing(self.generate(request)) as outputs:
            async for output in outputs:
                if output.evidence is not None:
                    return np.frombuffer(output.evidence.state, "<f4")
                raise failure(output)
        raise CoreGoneError(f"{model}: the core ended without a hidden state")

    async def prefill(self, request: AddRequest) -> SequenceOutput:
        """Compute the full blocks of the request's prompt into the core's prefix cache, without drawing a token.

        Returns the output with its counts. Cancellation frees its blocks within one step. Raises what `embed` raises.
        """
        sampling = SamplingParams(temperature=0.0, max_tokens=1)
        prompt = msgspec.structs.replace(
            request,
            request_id=f"prefill-{uuid4().hex}",
            sampling=sampling,
            n=1,
            evidence=None,
            speculate=False,
            prefill=True,
        )
        async with aclosing(self.generate(prompt)) as outputs:
            async for output in outputs:
                if output.finish_reason == "stop":
                    return output
                raise failure(output)
        raise CoreGoneError(f"{request.model}: the core ended without the prompt's blocks")

    async def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        """Return cached blocks of the chain, see `ExportBlocks`. Raises `KVTransferError` and `CoreGoneError`."""
        raise KVTransferError("this client cannot export blocks", "incompatible")

    async def import_blocks(self, chain: BlockChain, frame: BlockFrame | None = None) -> int:
        """Cache blocks, see `ImportBlocks`; return how many of the chain's blocks, from the first on, are cached then.
        Raises `KVTransferError` (nothing is cached) and `CoreGoneError`."""
        raise KVTransferError("this client cannot import blocks", "incompatible")

    @abstractmethod
    def unread(self, request_id: str) -> list[SequenceOutput]:
        """Return the received outputs of an open request that its iterator has not yielded yet; they stay there."""

    @abstractmethod
    def abort_choice(self, request_id: str, index: int) -> None:
        """End one choice of an open request within one step; ignored if it has ended. Never blocks."""

    @abstractmethod
    async def stats(self) -> CoreStats:
        """Return statistics taken between two steps."""

    @abstractmethod
    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        """Change the named knobs of `model`, or of every model; see `SetKnobs`.

        Raises `InvalidRequestError` with the reason and the knob if refused; then nothing has changed.
        """

    @abstractmethod
    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        """Serve the PEFT folder `path`, on the core's machine, as adapter `name`; return the model's adapters then.

        Raises `InvalidRequestError` with the reason and the parameter (`model`, `name` or `path`) if refused.
        """

    @abstractmethod
    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        """Refuse new requests with the adapter, and unload it when the last has ended; return the model's adapters.

        Raises `InvalidRequestError` if there is no such adapter.
        """
