"""The seam between a batch's lines and those who answer them: taken, kept, put back, done."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec


class QueueUnavailableError(RuntimeError):
    """The queue cannot be reached now; what it holds is not lost."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was taken. `deliveries`: how often it has been, this time included.

    `deaths`: how often a process ended while it was at work on the line. `redelivered`: the delivery before this one
    ended so. `token`: by which the queue knows this delivery again.
    """

    batch_id: str
    number: int
    deliveries: int
    deaths: int = 0
    redelivered: bool = False
    token: str = ""


class JobQueue(ABC):
    """Lines of batches that wait for an answer, in order, each given to one worker at a time.

    A job that is neither done, nor put back, nor kept for the queue's lease was in work when its process died, as far
    as anyone can tell. It is a suspect from then on: only `take_suspect` gives it, one of a batch at a time, so that a
    worker can answer it alone. A line may thus be answered twice: which answer counts is not the queue's to say.
    All methods raise `QueueUnavailableError`.
    """

    @abstractmethod
    async def take(self, batch_id: str, most: int) -> list[BatchJob]:
        """Up to `most` lines that nobody works on and whose time has come, no suspects. Does not wait for any."""

    @abstractmethod
    async def has_suspect(self, batch_id: str) -> bool:
        """Whether `take_suspect` would give one now."""

    @abstractmethod
    async def take_suspect(self, batch_id: str) -> BatchJob | None:
        """A suspect that nobody works on and whose time has come; None while another one of the batch is in work."""

    @abstractmethod
    async def keep(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Work on `jobs` goes on; those that are another's meanwhile come back."""

    @abstractmethod
    async def put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        """Give it to anyone in so many `seconds`, as one that has been delivered so often; as a suspect if it has seen
        any `deaths`."""

    @abstractmethod
    async def done(self, jobs: Sequence[BatchJob]) -> None:
        """Their answers are stored: never deliver them again."""

    @abstractmethod
    async def forget(self, batch_id: str) -> None:
        """The batch is over."""
