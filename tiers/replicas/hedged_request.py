"""One request with retries and hedging: asks replicas one after another, or two at once, until one yields a delta.

At each replica it has a stream, an entry in the balancer, and a result.
"""

import asyncio
from collections.abc import Callable

from tiers.dialects.usage_counter import Tally
from tiers.errors import (
    ReplicaTry,
    TierAnswerError,
    TierBusyError,
    TierError,
    TierKeyError,
    TierRequestError,
    TierUnavailableError,
    TryOutcome,
)
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.balancer import Balancer
from tiers.replicas.replica import InFlightRequest
from tiers.tier import Delta, GenerationRequest, Usage


class ReplicaCall:
    """Starts at once; `opening` ends with the first delta or an error. Always `close` it.

    `seconds`: time limit of the whole answer. None for `first_token_timeout_seconds` is a failure.
    """

    def __init__(
        self,
        tier: RemoteTier,
        in_flight: InFlightRequest,
        balancer: Balancer,
        request: GenerationRequest,
        tally: Tally,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.in_flight, self.tally = in_flight, tally
        self.deltas = tier.answer(request, tally, seconds)
        self.outcome: ReplicaTry | None = None
        self._balancer, self._clock = balancer, clock
        self._patience = balancer.spec.first_token_timeout_seconds
        self._opening: asyncio.Task[Delta] | None = asyncio.create_task(self._open(min(self._patience, seconds)))

    @property
    def opening(self) -> asyncio.Task[Delta]:
        """Not for a call that is closed: the traceback of its failure leads back to the call."""
        assert self._opening is not None
        return self._opening

    def answered(self) -> None:
        self._balancer.first_token(self.in_flight)
        self._tell("answered")

    def finished(self) -> None:
        self._balancer.succeed(self.in_flight)

    def failed(self, error: TierError) -> None:
        """Note that the stream ended with `error`, before or after its first delta."""
        if isinstance(error, TierBusyError):
            self._balancer.pause(self.in_flight, error.retry_after_seconds)
        elif isinstance(error, TierKeyError):
            self._balancer.reject(self.in_flight, error.retry_after_seconds)
        elif isinstance(error, TierRequestError):
            self._balancer.succeed(self.in_flight)
        else:
            self._balancer.fail(self.in_flight)
        self._tell("failed", error)

    async def close(self) -> None:
        """End it in any state; the server sees the connection close. Idempotent."""
        if self.in_flight.entry is not None:
            used = self.tally.usage()
            self._balancer.used(self.in_flight, used.prompt_tokens + used.completion_tokens)
        self._balancer.leave(self.in_flight)
        self._tell("overtaken")
        opening, self._opening = self._opening, None
        if opening is not None:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
            if not opening.cancelled():
                opening.exception()
        await self.deltas.aclose()

    def _tell(self, outcome: TryOutcome, error: TierError | None = None) -> None:
        if self.outcome is None:
            self.outcome = ReplicaTry(
                replica=self.in_flight.replica.url,
                outcome=outcome,
                seconds=self._clock() - self.in_flight.began,
                error=None if error is None else f"{type(error).__name__}: {error.for_operators}",
            )

    async def _open(self, seconds: float) -> Delta:
        try:
            async with asyncio.timeout(seconds):
                return await anext(self.deltas)
        except StopAsyncIteration:
            raise self._silent(TierError, "ended its answer before it began") from None
        except TimeoutError:
            # What a replica thought that was too slow is not its caller's.
            self.tally.hidden = 0
            raise self._silent(TierUnavailableError, f"gave no token within {seconds:g} s") from None

    def _silent(self, kind: type[TierError], what: str) -> TierError:
        error = kind(f"a replica {what}")
        error.server = self.in_flight.replica.url
        return error


class ReplicaRace:
    """`first` returns the first delta of any replica; `winner` is then its call. Always `close` it.

    It does not keep `ask`, which has the request: its meter has the `usage` of the race.
    """

    def __init__(self, name: str) -> None:
        self.winner: ReplicaCall | None = None
        self._name = name
        self._calls: list[ReplicaCall] = []
        self._errors: list[TierError] = []

    async def first(self, ask: Callable[[list[ReplicaCall]], ReplicaCall | None], hedge_seconds: float | None) -> Delta:
        """Return the first delta. `ask`, given the calls so far, asks one more replica, or returns None if none may be
        asked. After `hedge_seconds` without a delta (None: never) a second one is asked; the slower one is closed at
        once. Raises TierRequestError from a server at once, else, when no further replica may be asked, the combined
        failure."""
        running = self._another(ask)
        if not running:
            raise TierUnavailableError(f"tier '{self._name}': none of its replicas takes requests")
        while True:
            done, _ = await asyncio.wait(running, timeout=hedge_seconds, return_when=asyncio.FIRST_COMPLETED)
            hedge_seconds = None
            if not done:
                running |= self._another(ask)
                continue
            for opening in sorted(done, key=list(running).index):
                call = running.pop(opening)
                if self._has_answered(call):
                    await self._close_all_but(call)
                    return opening.result()
            if not running:
                running = self._another(ask)
            if not running:
                raise self._failure()

    @property
    def tries(self) -> list[ReplicaTry]:
        return [call.outcome for call in self._calls if call.outcome is not None]

    def usage(self) -> Usage:
        """Return the usage of the winner and of every other server that has sent output or counts, its prompt included;
        before any has, one prompt."""
        tallies = [call.tally for call in self._calls if call is self.winner or call.tally.has_spoken]
        return Usage.total(tally.usage() for tally in tallies or [call.tally for call in self._calls[:1]])

    async def close(self) -> None:
        """End every call."""
        try:
            await self._close_all_but(None)
        finally:
            self._errors.clear()

    def _another(
        self, ask: Callable[[list[ReplicaCall]], ReplicaCall | None]
    ) -> dict[asyncio.Task[Delta], ReplicaCall]:
        call = ask(self._calls)
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
            error.server = ", ".join(dict.fromkeys(failure.server for failure in self._errors if failure.server))
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
