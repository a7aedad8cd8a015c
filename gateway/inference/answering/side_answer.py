"""One tier's answer that is made at the same time as another tier's, in a task of its own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from gateway.inference.answering.tier_attempt import TierAttempt
from quality.records.record import Attempt, AttemptStatus, ComparedAs
from tiers.collected_choice import CollectedChoice
from tiers.errors import TierError
from tiers.tier import Delta, Tier, Usage


class SideAnswer:
    """Reads an attempt to its end and keeps what the tier gave; `aclose` it unless it has ended.

    `choice`: the answer so far; `error`: why it has none.
    """

    def __init__(self, attempt: TierAttempt) -> None:
        self.choice = CollectedChoice()
        self.error: Exception | None = None
        self._attempt = attempt
        self._deltas: list[Delta] = []
        self._task = asyncio.create_task(self._read(attempt.deltas))

    @property
    def tier(self) -> Tier:
        """The tier that answers."""
        return self._attempt.tier

    @property
    def ended(self) -> bool:
        """Whether the tier gave its whole answer."""
        return self.choice.usage is not None and self.error is None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes: it ended, failed or was stopped."""
        return self._task.done()

    @property
    def usage(self) -> Usage:
        """What is billed of it so far: at most what is held."""
        return self._attempt.usage or self._attempt.used_so_far(self.error)

    def attempt(self, compared_as: ComparedAs, status: AttemptStatus, reason: str | None) -> Attempt:
        """Its part of the record. An answer that is not whole has failed, or was given up."""
        if not self.ended:
            status = "aborted" if self.error is None else "error"
        return self._attempt.record(status, self.error, compared_as=compared_as, reason=reason)

    async def wait(self) -> None:
        """Wait for its end, whichever it is."""
        await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step. Idempotent."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    def replayed(self) -> TierAttempt:
        """Return the attempt again, from its beginning: it waits for the end, gives what the tier gave, and raises what
        that raised."""
        self._attempt.usage, self._attempt.replicas, self._attempt.deltas = None, [], self._replay()
        return self._attempt

    async def _replay(self) -> AsyncGenerator[Delta, None]:
        await self.wait()
        for delta in self._deltas:
            yield delta
        if self.error is not None:
            raise self.error

    async def _read(self, deltas: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    delta.made_at = time.monotonic()
                    self._deltas.append(delta)
                    self._attempt.replicas += delta.tries
                    self.choice.take(delta)
                    if delta.end is not None:
                        self._attempt.usage = self._attempt.within_hold(delta.end.usage)
                    if delta.finish_reason == "error":
                        raise TierError(f"tier {self.tier.number} ended a choice with an error")
        except Exception as error:
            self.error = error


async def one_more_over(sides: Iterable[SideAnswer]) -> None:
    """Wait until another of `sides` is over, of which at least one is not."""
    await asyncio.wait([side._task for side in sides if not side.is_over], return_when=asyncio.FIRST_COMPLETED)
