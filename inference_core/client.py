"""The asyncio side of a core: one contract, two transports (a thread, a Unix socket)."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping

from inference_core.protocol import AdapterInfo, AddRequest, CoreStats, KnobsSet, KnobValue, ModelInfo, SequenceOutput


class CoreClient(ABC):
    """Contract of both transports; `tests/inference_core/transport/test_core_client.py` runs it against each.

    - `generate` yields every output of the request in order and ends after the last choice finished.
    - Closing the iterator early (`aclose`, cancellation) aborts the request within one step.
    - A choice that `abort_choice` ends early gets its last output, with `finish_reason` "abort"; the others go on.
    - All outputs of one step reach the event loop in one wake-up.
    - When the core dies, every open iterator raises `CoreGoneError`; later calls raise it at once.
    - A request the core refuses ends with one output whose `finish_reason` is "error"; a choice that fails
      ends its whole request in the same way.
    - After `CoreGoneError`, `start` may be called again to connect afresh.
    """

    @abstractmethod
    async def start(self) -> None:
        """Connect; returns when `models` is known. Raises `CoreGoneError`."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; aborts everything this client has in flight. Idempotent."""

    @property
    def stuck(self) -> str | None:
        """Why the core does not advance, as its watchdog last said; None while it does."""
        return None

    @property
    @abstractmethod
    def models(self) -> dict[str, ModelInfo]:
        """The models of the core by name."""

    @abstractmethod
    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        """Submit `request` and iterate over its outputs."""

    @abstractmethod
    def abort_choice(self, request_id: str, index: int) -> None:
        """End one choice of an open request within one step; ignored if it has ended. Never blocks."""

    @abstractmethod
    async def stats(self) -> CoreStats:
        """A snapshot taken between two steps."""

    @abstractmethod
    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        """Change the named knobs of `model`, or of every model; see `SetKnobs`.

        Raises `InvalidRequestError` with the reason and the knob if refused; then nothing has changed.
        """

    @abstractmethod
    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        """Serve the PEFT folder `path`, on the core's machine, as adapter `name` of `model`; the model's adapters then.

        Raises `InvalidRequestError` with the reason and the parameter (`model`, `name` or `path`) if refused.
        """

    @abstractmethod
    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        """Take no more requests with that adapter, and forget it when the last has ended; the model's adapters now.

        Raises `InvalidRequestError` if there is no such adapter.
        """
