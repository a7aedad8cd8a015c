"""One request with retries and hedging: asks replicas one after another, or two at once, until one yields a delta."""

import asyncio
from collections.abc import Callable

from tiers.attempt import ReplicaTry
from tiers.errors import TierAnswerError, TierError, TierRequestError, TierUnavailableError
from tiers.replicas.replica_request import ReplicaCall
from tiers.tier import Delta, Usage


class ReplicaRace:
    """`first` returns the first delta of any replica; `winner` is then its call. Always `close` it.

    `ask`, given the calls so far, asks one more replica, or returns None if none may be asked. After `hedge_seconds`
    without a delta (None: never) a second one is asked; the slower one is closed at once.
    """

    def __init__(
        self, name: str, ask: Callable[[list[ReplicaCall]], ReplicaCall | None], hedge_seconds: float | None
    ) -> None:
        self.winner: ReplicaCall | None = None
        self._name, self._ask, self._patience = name, ask, hedge_seconds
        self._calls: list[ReplicaCall] = []
        self._errors: list[TierError] = []

    async def first(self) -> Delta:
        """Return the first delta. Raises TierRequestError from a server at once, else, when no further replica may be
        asked, the combined failure."""
        running = self._another()
        if not running:
            raise TierUnavailableError(f"tier '{self._name}': none of its replicas takes requests")
        while True:
            done, _ = await asyncio.wait(running, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
            self._patience = None
            if not done:
                running |= self._another()
                continue
            for opening in sorted(done, key=list(running).index):
                call = running.pop(opening)
                if self._has_answered(call):
                    await self._close_all_but(call)
                    return opening.result()
            if not running:
                running = self._another()
            if not running:
                raise self._failure()

    @property
    def tries(self) -> list[ReplicaTry]:
        """Return the results of the asked replicas, in order."""
        return [call.outcome for call in self._calls if call.outcome is not None]

    def usage(self) -> Usage:
        """Return the usage of the winner and of every other server that has sent output or counts, its prompt included;
        before any has, one prompt."""
        tallies = [call.tally for call in self._calls if call is self.winner or call.tally.has_spoken]
        return Usage.total(tally.usage() for tally in tallies or [call.tally for call in self._calls[:1]])

    async def close(self) -> None:
        """End every call."""
        await self._close_all_but(None)

    def _another(self) -> dict[asyncio.Task[Delta], ReplicaCall]:
        call = self._ask(self._calls)
        if call is None:
            return {}
        self._calls.append(call)
        return {call.opening: call}

    def _has_answered(self, call: ReplicaCall) -> bool:
        error = call.opening.exception()
        if error is None:
            call.answered()
            self.winner = call
            return True
        if not isinstance(error, TierError):
            raise error
        call.failed(error)
        if isinstance(error, TierRequestError):
            error.tries = tuple(self.tries)
            raise error
        self._errors.append(error)
        return False

    def _failure(self) -> TierError:
        """Return the only error, or all of them combined."""
        error = self._errors[0]
        if len(self._errors) > 1:
            unavailable = [e for e in self._errors if isinstance(e, TierUnavailableError)]
            said = "; ".join(map(str, self._errors))
            answered = all(isinstance(e, TierAnswerError) for e in self._errors)
            kind = TierUnavailableError if unavailable else TierAnswerError if answered else TierError
            error = kind(f"tier '{self._name}': none of {len(self._errors)} replicas answered: {said}")
            if isinstance(error, TierUnavailableError):
                error.retry_after_seconds = min(e.retry_after_seconds for e in unavailable)
        error.tries = tuple(self.tries)
        return error

    async def _close_all_but(self, kept: ReplicaCall | None) -> None:
        calls = [call for call in self._calls if call is not kept]
        if len(calls) == 1:
            await calls[0].close()
        elif calls:
            await asyncio.gather(*(call.close() for call in calls))
