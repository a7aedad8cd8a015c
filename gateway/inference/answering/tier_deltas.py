"""What a tier says to one or several prompts of a request, as one closable stream of deltas."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from gateway.inference.answering.best_of import best_of
from tiers.merge_streams import merge
from tiers.tier import Delta, GenerationRequest, Tier


def tier_deltas(tier: Tier, requests: list[GenerationRequest], n: int) -> AsyncGenerator[Delta, None]:
    """Deltas of all `requests` as they come; choice `j` of request `i` has index `i * n + j`, usage is the sum.

    A request for more than `n` choices gives the best `n` of them (`best_of`). The first error ends everything. Closing
    the generator closes every request within one step of its engine.
    """
    if len(requests) == 1:
        return _one(tier, requests[0], n)
    sources = [_one(tier, request, n) for request in requests]
    return _billed_together(merge([_numbered(source, place * n) for place, source in enumerate(sources)]))


def _one(tier: Tier, request: GenerationRequest, n: int) -> AsyncGenerator[Delta, None]:
    # Contract of `Tier`: the iterator can be closed early, so it is a generator.
    drawn = cast(AsyncGenerator[Delta, None], tier.generate(request))
    return best_of(drawn, request.n, n) if request.n > n else drawn


async def _numbered(source: AsyncGenerator[Delta, None], first: int) -> AsyncGenerator[Delta, None]:
    async with aclosing(source) as deltas:
        async for delta in deltas:
            delta.index += first
            yield delta


async def _billed_together(merged: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
    ends: list[Delta] = []
    async with aclosing(merged) as deltas:
        async for delta in deltas:
            if delta.end is not None:
                ends.append(delta)
            else:
                yield delta
    yield Delta.last_of(ends)
