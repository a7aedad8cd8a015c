"""One tier's attempt at an answer, and what is billed and recorded of it.

What a tier says to one or several prompts of a request is one closable stream of deltas. A side answer is made at the
same time as another tier's, in a task of its own. The lengths at which tiers refused a request as too long say which
of the others may still take it.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, cast

import msgspec

from gateway.tenancy.admission import MostTokens
from quality.records.record import Attempt, AttemptStatus, ComparedAs
from tiers.catalog.pricing import calls_of, cost_usd, long_price, scaled
from tiers.catalog.tier_spec import USUAL_CONTEXT, TierSpec
from tiers.deltas import CollectedChoice, merged_answers
from tiers.errors import (
    ReplicaTry,
    TierAnswerError,
    TierContextError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.tier import Delta, GenerationRequest, Tier, Usage


def tier_deltas(tier: Tier, requests: list[GenerationRequest], n: int) -> AsyncGenerator[Delta, None]:
    """Deltas of all `requests` as they come; choice `j` of request `i` has index `i * n + j`, usage is the sum.

    A request for more than `n` choices gives the best `n` of them. The first error ends everything. Closing the
    generator closes every request within one step of its engine.
    """
    if len(requests) == 1:
        return _one(tier, requests[0], n)
    return merged_answers([_one(tier, request, n) for request in requests], n)


def _one(tier: Tier, request: GenerationRequest, n: int) -> AsyncGenerator[Delta, None]:
    # Contract of `Tier`: the iterator can be closed early, so it is a generator.
    drawn = cast(AsyncGenerator[Delta, None], tier.generate(request))
    return _best_of(drawn, request.n, n) if request.n > n else drawn


async def _best_of(drawn: AsyncGenerator[Delta, None], count: int, keep: int) -> AsyncGenerator[Delta, None]:
    """The best `keep` of the `count` choices that `drawn` brings by mean log-probability, as OpenAI's `best_of` has it:
    best first, once all have ended; then the usage.

    The mean is over an answer's own tokens, a repeated prompt's are not among them; of equals the earlier choice goes
    first. Choices without tokens, or whose tier says nothing of their log-probabilities, come last.
    """
    choices = [_Drawn() for _ in range(count)]
    tries: list[ReplicaTry] = []
    async with aclosing(drawn) as deltas:
        async for delta in deltas:
            if delta.end is None:
                tries, delta.tries = tries + delta.tries, []
                choices[delta.index].add(delta)
                continue
            ranked = sorted(choices, key=lambda choice: choice.mean_logprob(), reverse=True)
            for index, choice in enumerate(ranked[:keep]):
                for said in choice.deltas(index):
                    yield said
            delta.tries = tries
            yield delta


class _Drawn:
    """All that one choice said, and how likely it was."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._logprobs: list[float] = []

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.logprobs and not delta.echo:
            self._logprobs += [token.logprob for token in delta.logprobs if token.logprob is not None]

    def mean_logprob(self) -> float:
        return sum(self._logprobs) / len(self._logprobs) if self._logprobs else -math.inf

    def deltas(self, index: int) -> list[Delta]:
        for delta in self._deltas:
            delta.index = index
        return self._deltas


class RefusedLengths:
    """Of one request. A context must be longer than `_beyond` tokens; 0 while nothing is known of it."""

    def __init__(self) -> None:
        self._beyond = 0

    def note(self, error: TierContextError, tier: Tier, spec: TierSpec) -> None:
        """Note a refusal: the counts that it tells, else that the tier's own context is too short, if that is known."""
        told = max(error.prompt_tokens, error.max_context)
        if not told and not error.in_bytes and not _is_assumed(tier, spec):
            told = tier.max_context
        self._beyond = max(self._beyond, told)

    def admit(self, tier: Tier, spec: TierSpec) -> bool:
        """Whether the request may fit `tier`, whose context is longer than those that were too short, or unknown."""
        return not self._beyond or tier.max_context > self._beyond or _is_assumed(tier, spec)


def _is_assumed(tier: Tier, spec: TierSpec) -> bool:
    """Whether neither the catalogue nor the server tells the tier's context."""
    return spec.remote is not None and spec.remote.max_context is None and tier.max_context == USUAL_CONTEXT


_UNUSED = Usage()
MOST_CHARGED_USD = 100.0
"""The most that a server is believed to charge for an attempt without a budget: no honest answer costs so much."""


class TierAttempt:
    """The `deltas` of `tier` for `requests`. `most`: the tokens that a budget holds for it, None without a budget.
    `began`: monotonic seconds. Its reader notes the `replicas` that were asked, and at the end the `usage`. `recorded`:
    its part of the record, once that is made."""

    __slots__ = ("began", "deltas", "most", "recorded", "replicas", "requests", "spec", "tier", "usage")

    def __init__(
        self,
        tier: Tier,
        spec: TierSpec,
        requests: list[GenerationRequest],
        most: MostTokens | None,
        deltas: AsyncGenerator[Delta, None],
    ) -> None:
        self.tier, self.spec, self.requests, self.most, self.deltas = tier, spec, requests, most, deltas
        self.began = time.monotonic()
        self.replicas: list[ReplicaTry] = []
        self.usage: Usage | None = None
        self.recorded: Attempt | None = None

    @property
    def unsettled(self) -> list[asyncio.Task[None]]:
        """The answers that are read on for their counts, after they were left."""
        return [task for request in self.requests for task in request.meter.unsettled if not task.done()]

    @property
    def most_usd(self) -> float:
        """The most US dollars of its bill: what is held for it, or the bill itself once its server has counted all."""
        if self.usage is not None and not self.unsettled:
            return float(self._billed(self.usage)["cost_usd"])
        return math.inf if self.most is None else self.most.usd

    def settle(self) -> Attempt | None:
        """Bill what servers have counted since it was left; return its record, None if nothing was read on."""
        if self.recorded is None or not any(request.meter.unsettled for request in self.requests):
            return None
        self.usage = self.used_so_far()
        self.recorded = msgspec.structs.replace(self.recorded, **self._billed(self.usage))
        return self.recorded

    def within_hold(self, usage: Usage) -> Usage:
        """Return what is billed of `usage`: at most what is held, whatever a server counts or charges."""
        if self.most is None:
            return usage
        bounded = self.most.bound(usage)
        if bounded.cost_usd:
            return msgspec.structs.replace(bounded, cost_usd=min(bounded.cost_usd, self.most.usd))
        return bounded

    def used_so_far(self, error: Exception | None = None) -> Usage:
        """Return the tokens to bill of an attempt that was cut short: none if the tier never accepted the request or
        broke off before its first output."""
        used = Usage.total(request.meter.usage() for request in self.requests)
        if isinstance(error, (TierUnavailableError, TierRequestError, TierAnswerError)) and not used.completion_tokens:
            return Usage()
        return self.within_hold(used)

    def record(self, status: AttemptStatus, error: Exception | None, **judged: Any) -> Attempt:
        """Return its part of the record; `judged`: the fields that say what came of its answer."""
        first, used = self.requests[0], self.usage or self.used_so_far(error)
        self.recorded = Attempt(
            tier=self.tier.number,
            model=self.tier.model,
            status=status,
            max_tokens=first.sent.max_tokens,
            error=None if error is None else f"{type(error).__name__}: {error}",
            replicas=[*self.replicas, *(error.tries if isinstance(error, TierError) else ())],
            **self._billed(used),
            added=list(first.sent.added),
            target=self.tier.name if self.tier.is_target else None,
            resumed=bool(first.sent.read_again),
            **judged,
        )
        return self.recorded

    def _billed(self, used: Usage) -> dict[str, Any]:
        first, again = self.requests[0], self.requests[0].sent.read_again
        if again:
            used = msgspec.structs.replace(used, prompt_tokens=used.prompt_tokens + sum(again))
        fields = billed(self.spec, used, first, len(self.requests) + len(again), self.most)
        return fields | {"claimed": claimed(self.requests)}


def billed(
    spec: TierSpec, usage: Usage, request: GenerationRequest, prompts: int, most: MostTokens | None
) -> dict[str, Any]:
    """The fields of an attempt of `prompts` like `request` that say what is billed at which price, at `most` what is
    held, and what of its prompt a server's cache had, and got."""
    price = long_price(spec, usage, prompts, request.n) if spec.price.steps else spec.price
    charged = min(usage.cost_usd, MOST_CHARGED_USD)
    beside, notes = 0.0, list[str]()
    if spec.remote is not None and usage != _UNUSED:
        # A gateway of local models alone does without it.
        from tiers.dialects.extras import billed_extras

        extras = billed_extras(spec, request, usage, calls_of(spec, prompts, request.n))
        beside, notes = extras.usd, list(extras.notes)
        price = price if extras.factor == 1.0 else scaled(price, extras.factor)
    tokens_usd = cost_usd(spec, usage, price)
    held = MOST_CHARGED_USD if most is None else most.usd
    extras_usd = 0.0 if charged else min(beside, max(0.0, held - tokens_usd))
    usd = charged or tokens_usd + extras_usd
    return {
        "cost_usd": usd if most is None else min(usd, most.usd),
        "charged_usd": charged or None,
        "extras": notes,
        "extras_usd": extras_usd,
        "price": price,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "estimated": usage.estimated,
    }


def claimed(requests: list[GenerationRequest]) -> Usage | None:
    """Return the sum of the counts that servers reported and that cannot be; None if there are none."""
    claims = [claim for request in requests for claim in request.meter.claims]
    return Usage.total(claims) if claims else None


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


async def wait_for_next(sides: Iterable[SideAnswer]) -> None:
    """Wait until another of `sides` is over, of which at least one is not."""
    await asyncio.wait([side._task for side in sides if not side.is_over], return_when=asyncio.FIRST_COMPLETED)
