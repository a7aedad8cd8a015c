"""One tier's attempt at an answer, and what is billed and recorded of it."""

import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from gateway.tenancy.budgets.cost_bound import MostTokens
from quality.records.record import Attempt, AttemptStatus
from tiers.attempt import ReplicaTry
from tiers.catalog.pricing import cost_usd, long_price, most_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import TierAnswerError, TierError, TierRequestError, TierUnavailableError
from tiers.tier import Delta, GenerationRequest, Tier, Usage

MOST_CHARGED_USD = 100.0
"""The most that a server is believed to charge for an attempt without a budget: no honest answer costs so much."""


class TierAttempt:
    """The `deltas` of `tier` for `requests`. `most`: the tokens that a budget holds for it, None without a budget.
    `began`: monotonic seconds. Its reader notes the `replicas` that were asked, and at the end the `usage`."""

    __slots__ = ("began", "deltas", "most", "replicas", "requests", "spec", "tier", "usage")

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

    def within_hold(self, usage: Usage) -> Usage:
        """Return what is billed of `usage`: at most what is held, whatever a server counts or charges."""
        if self.most is None:
            return usage
        bounded = self.most.bound(usage)
        if bounded.cost_usd:
            held = most_cost_usd(self.spec.price, self.most.prompt, self.most.answer)
            return msgspec.structs.replace(bounded, cost_usd=min(bounded.cost_usd, held))
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
        first = self.requests[0]
        return Attempt(
            tier=self.tier.number,
            model=self.tier.model,
            status=status,
            max_tokens=first.sent.max_tokens,
            error=None if error is None else f"{type(error).__name__}: {error}",
            replicas=[*self.replicas, *(error.tries if isinstance(error, TierError) else ())],
            claimed=claimed(self.requests),
            **billed(self.spec, self.usage or self.used_so_far(error), prompts=len(self.requests), choices=first.n),
            added=list(first.sent.added),
            target=self.tier.name if self.tier.is_target else None,
            **judged,
        )


def billed(spec: TierSpec, usage: Usage, *, prompts: int, choices: int) -> dict[str, Any]:
    """The fields of an attempt of `prompts` with `choices` each that say what is billed at which price, and what of its
    prompt a server's cache had, and got."""
    price = long_price(spec, usage, prompts, choices) if spec.price.steps else spec.price
    charged = min(usage.cost_usd, MOST_CHARGED_USD)
    return {
        "cost_usd": charged or cost_usd(spec, usage, price),
        "charged_usd": charged or None,
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
