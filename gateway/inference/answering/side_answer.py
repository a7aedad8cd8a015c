"""One tier's answer that is made at the same time as another tier's, in a task of its own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from gateway.tenancy.budgets.cost_bound import MostTokens
from quality.records.record import Attempt, AttemptStatus, ComparedAs
from tiers.catalog.pricing import cost_usd, long_price
from tiers.catalog.tier_spec import TierSpec
from tiers.collected_choice import CollectedChoice
from tiers.errors import TierAnswerError, TierError, TierRequestError, TierUnavailableError
from tiers.tier import Delta, GenerationRequest, Tier, Usage


class SideAnswer:
    """Reads `deltas` of `tier` to their end and keeps them; `aclose` it unless it has ended.

    `choice`: the answer so far; `error`: why it has none. `attempted`: its start, monotonic seconds.
    """

    def __init__(
        self,
        tier: Tier,
        spec: TierSpec,
        requests: list[GenerationRequest],
        most: MostTokens | None,
        deltas: AsyncGenerator[Delta, None],
    ) -> None:
        """`most`: the tokens that a budget holds for it, None without a budget."""
        self.tier, self.spec, self.requests, self.most = tier, spec, requests, most
        self.attempted = time.monotonic()
        self.choice = CollectedChoice()
        self.error: Exception | None = None
        self.closed = False
        self._deltas: list[Delta] = []
        self._task = asyncio.create_task(self._read(deltas))

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
        used = self.choice.usage
        if used is None:
            return used_so_far(self.requests, self.most, self.error)
        return used if self.most is None else self.most.bound(used)

    def attempt(self, compared_as: ComparedAs, status: AttemptStatus, reason: str | None) -> Attempt:
        """Its part of the record. An answer that is not whole has failed, or was given up."""
        error = self.error
        if not self.ended:
            status = "aborted" if error is None else "error"
        return Attempt(
            tier=self.tier.number,
            model=self.tier.model,
            status=status,
            max_tokens=self.requests[0].sent.max_tokens,
            error=None if error is None else f"{type(error).__name__}: {error}",
            reason=reason,
            replicas=[
                *(one for delta in self._deltas for one in delta.tries),
                *(error.tries if isinstance(error, TierError) else ()),
            ],
            claimed=claimed(self.requests),
            compared_as=compared_as,
            **billed(self.spec, self.usage, prompts=len(self.requests), choices=1),
            added=list(self.requests[0].sent.added),
        )

    async def wait(self) -> None:
        """Wait for its end, whichever it is."""
        await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Stop: the tier's work is freed within one step. Idempotent."""
        self.closed = self.closed or not self._task.done()
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def replay(self) -> AsyncGenerator[Delta, None]:
        """Wait for the end, and yield what the tier gave. Raises what it raised."""
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
                    self.choice.take(delta)
                    if delta.finish_reason == "error":
                        raise TierError(f"tier {self.tier.number} ended a choice with an error")
        except Exception as error:
            self.error = error


async def one_more_over(sides: Iterable[SideAnswer]) -> None:
    """Wait until another of `sides` is over, of which at least one is not."""
    await asyncio.wait([side._task for side in sides if not side.is_over], return_when=asyncio.FIRST_COMPLETED)


def used_so_far(requests: list[GenerationRequest], most: MostTokens | None, error: Exception | None) -> Usage:
    """Return the tokens to bill for an attempt that was cut short: none if the tier never accepted the request or broke
    off before its first output, at most `most` where a budget holds them."""
    used = Usage.total(request.meter.usage() for request in requests)
    if isinstance(error, (TierUnavailableError, TierRequestError, TierAnswerError)) and not used.completion_tokens:
        return Usage()
    return used if most is None else most.bound(used)


def billed(spec: TierSpec, usage: Usage, *, prompts: int, choices: int) -> dict[str, Any]:
    """The fields of an attempt of `prompts` with `choices` each that say what is billed at which price, and what of its
    prompt a server's cache had, and got."""
    price = long_price(spec, usage, prompts, choices) if spec.price.steps else spec.price
    return {
        "cost_usd": cost_usd(spec, usage, price),
        "price": price,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
    }


def claimed(requests: list[GenerationRequest]) -> Usage | None:
    """Return the sum of the counts that servers reported and that cannot be; None if there are none."""
    claims = [claim for request in requests for claim in request.meter.claims]
    return Usage.total(claims) if claims else None
