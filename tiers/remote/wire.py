"""The seam between a remote tier and the kind of server behind it: what is sent for a request, what an answer says."""

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
    """`path`: relative to `base_url`, of a Prometheus page. `samples`: their sum is how many requests are there."""

    path: str
    samples: tuple[str, ...]


class RemoteWire(ABC):
    """Contract of every kind of server; `tests/tiers/test_remote_wires.py` runs it against all of them.

    Stateless: what is known of an answer under way is in its `Tally`. The order of deltas is that of `Delta`.
    `health_path`: relative to `base_url`, answers a GET when the server can be asked. `queue`: where it tells how many
    requests it has, if it does. `model_path`: where it describes the model, if it does. `tells_logprobs`: whether every
    model of such a server gives log-probabilities; some of OpenAI's refuse a request that asks for them.
    """

    health_path: str
    tells_logprobs: bool = False
    queue: QueueMetric | None = None
    model_path: str | None = None

    def prepare(self) -> None:  # noqa: B027 - most kinds need nothing
        """Read what is needed from files; blocks. Raises `CatalogError`. Called before any request, maybe again."""

    def model_problem(self, status: int, body: bytes) -> str | None:
        """Why the model that a GET of `model_path` described cannot serve the tier; None where it can."""
        return None

    def is_about_model(self, error: WireError) -> bool:
        """Whether a request was refused for its model: the catalogue names that, and never the caller."""
        return False

    @abstractmethod
    def call(self, request: GenerationRequest, max_tokens: int) -> WireCall:
        """What to send. Raises `TierRequestError` for what this kind of server cannot do."""

    @abstractmethod
    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """What an event says; None: it is the last one. Raises `TierError` for one that tells of a failure."""

    @abstractmethod
    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """What a whole answer says. Raises `TierError`."""

    def read_end(self, tally: Tally) -> list[Delta]:
        """What it means that the stream has ended; where nothing, choices without an end are an error."""
        return []
