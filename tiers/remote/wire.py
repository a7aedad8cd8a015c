"""The interface between a remote tier and the kind of its server: how requests are sent and answers are read."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from tiers.remote.openai_format import WireError
from tiers.remote.sse import ServerSentEvent
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta, GenerationRequest


class WireCall(NamedTuple):
    """One POST: `path` is relative to the server's `base_url`. `streamed`: the answer is a stream of events."""

    path: str
    body: bytes
    streamed: bool


class QueueMetric(NamedTuple):
    """`path`: of a Prometheus page, relative to `base_url`. `samples`: their sum is the number of requests on the
    server."""

    path: str
    samples: tuple[str, ...]


class RemoteWire(ABC):
    """Contract of every kind of server; `tests/tiers/remote/test_remote_kinds.py` runs it against all of them.

    Stateless: the state of a running answer is in its `Tally`. The order of deltas is that of `Delta`. `health_path`:
    relative to `base_url`, answers a GET when the server is ready. `queue`: where it reports the number of its
    requests, if it does. `model_path`: where it describes the model, if it does; `models_path`: where it lists all its
    models, as OpenAI does. `tells_logprobs`: whether every model
    of such a server gives log-probabilities; some of OpenAI's reject a request for them.
    """

    health_path: str
    tells_logprobs: bool = False
    queue: QueueMetric | None = None
    model_path: str | None = None
    models_path: str | None = None

    def prepare(self) -> None:  # noqa: B027 - most kinds need nothing
        """Read the needed files; blocks. Raises `CatalogError`. Called before any request, possibly more than once."""

    def model_problem(self, status: int, body: bytes) -> str | None:
        """Return why the model described by a GET of `model_path` cannot serve the tier; None if it can."""
        return None

    def is_about_model(self, error: WireError) -> bool:
        """Return whether a request was refused because of its model, which is the catalogue's fault and never the
        caller's."""
        return False

    @abstractmethod
    def call(self, request: GenerationRequest, max_tokens: int) -> WireCall:
        """Return what to send. Raises `TierRequestError` for what this kind of server does not support."""

    @abstractmethod
    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """Return an event's deltas; None for the last event. Raises `TierError` for one that reports a failure."""

    @abstractmethod
    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """Return the deltas of a whole answer. Raises `TierError`."""

    def read_end(self, tally: Tally) -> list[Delta]:
        """Return the deltas implied by the end of the stream; without any, unfinished choices are an error."""
        return []
