"""One request at one replica of a set: its stream, its entry in the balancer, and its result."""

import asyncio
from collections.abc import Callable

from tiers.attempt import ReplicaTry, TryOutcome
from tiers.errors import TierBusyError, TierError, TierKeyError, TierRequestError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.remote.usage_counter import Tally
from tiers.replicas.balancer import Balancer
from tiers.replicas.replica import InFlightRequest
from tiers.tier import Delta, GenerationRequest


class ReplicaCall:
    """Starts at once; `opening` ends with the first delta or an error. Always `close` it.

    `seconds`: time limit of the whole answer. A replica without output for the balancer's `first_token_timeout_seconds`
    has failed.
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
        self.opening = asyncio.create_task(self._open(min(self._patience, seconds)))

    def answered(self) -> None:
        """Note that its first delta is used."""
        self._balancer.first_token(self.in_flight)
        self._tell("answered")

    def finished(self) -> None:
        """Note that the answer was completed."""
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
        if not self.opening.done():
            self.opening.cancel()
            await asyncio.wait([self.opening])
        if not self.opening.cancelled():
            self.opening.exception()
        await self.deltas.aclose()

    def _tell(self, outcome: TryOutcome, error: TierError | None = None) -> None:
        if self.outcome is None:
            self.outcome = ReplicaTry(
                replica=self.in_flight.replica.url,
                outcome=outcome,
                seconds=self._clock() - self.in_flight.began,
                error=None if error is None else f"{type(error).__name__}: {error}",
            )

    async def _open(self, seconds: float) -> Delta:
        try:
            async with asyncio.timeout(seconds):
                return await anext(self.deltas)
        except StopAsyncIteration:
            raise TierError(f"{self.in_flight.replica.url} ended its answer before it began") from None
        except TimeoutError:
            raise TierUnavailableError(f"{self.in_flight.replica.url} gave no token within {seconds:g} s") from None
