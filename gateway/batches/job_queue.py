"""The interface between a batch's lines and their workers: take, keep, put back, done."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec


class QueueUnavailableError(RuntimeError):
    """The queue is unreachable; its contents are not lost."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was taken. `deliveries`: how often, this time included.

    `deaths`: how many processes died while working on the line. `redelivered`: the previous delivery ended that way.
    `token`: the queue's identifier of this delivery.
    """

    batch_id: str
    number: int
    deliveries: int
    deaths: int = 0
    redelivered: bool = False
    token: str = ""


class JobQueue(ABC):
    """Lines of batches that wait for an answer, in order, each given to one worker at a time.

    A job that is not done, put back or kept within the queue's lease is assumed to have lost its process. It becomes a
    suspect: only `take_suspect` hands it out, one per batch at a time, so that a worker can answer it alone. A line may
    thus be answered twice; the queue does not decide which answer counts. All methods raise `QueueUnavailableError`.
    """

    @abstractmethod
    async def take(self, batch_id: str, most: int) -> list[BatchJob]:
        """Return up to `most` due lines that no worker has, without suspects. Does not wait."""

    @abstractmethod
    async def has_suspect(self, batch_id: str) -> bool:
        """Return whether `take_suspect` would return one now."""

    @abstractmethod
    async def take_suspect(self, batch_id: str) -> BatchJob | None:
        """Return a due suspect that no worker has; None while another suspect of the batch is being answered."""

    @abstractmethod
    async def keep(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Renew the leases of `jobs`; return those that other workers have taken over."""

    @abstractmethod
    async def put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        """Hand the job to any worker after `seconds`, with this count of deliveries; as a suspect if it has seen
        `deaths`."""

    @abstractmethod
    async def done(self, jobs: Sequence[BatchJob]) -> None:
        """Their answers are stored: never deliver them again."""

    @abstractmethod
    async def forget(self, batch_id: str) -> None:
        """Delete the queue's data of an ended batch."""
