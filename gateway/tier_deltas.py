"""What a tier says to one or several prompts of a request, as one closable stream of deltas."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import msgspec

from tiers.tier import Delta, GenerationRequest, Tier, Usage

_Event = Delta | Exception | None


def tier_deltas(tier: Tier, requests: list[GenerationRequest]) -> AsyncGenerator[Delta, None]:
    """Deltas of all `requests` as they come; choice `j` of request `i` has index `i * n + j`, usage is the sum.

    The first error ends everything. Closing the generator closes every request within one step of its engine.
    """
    return _one(tier, requests[0]) if len(requests) == 1 else _merged(tier, requests)


def _one(tier: Tier, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
    # Contract of `Tier`: the iterator can be closed early, so it is a generator.
    return cast(AsyncGenerator[Delta, None], tier.generate(request))


async def _merged(tier: Tier, requests: list[GenerationRequest]) -> AsyncGenerator[Delta, None]:
    events: asyncio.Queue[_Event] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(tier, request, place, events)) for place, request in enumerate(requests)]
    usages: list[Usage] = []
    running = len(pumps)
    try:
        while running:
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            elif event.usage is not None:
                usages.append(event.usage)
            else:
                yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    yield Delta(usage=_total(usages))


async def _pump(tier: Tier, request: GenerationRequest, place: int, events: asyncio.Queue[_Event]) -> None:
    try:
        async with aclosing(_one(tier, request)) as deltas:
            async for delta in deltas:
                delta.index += place * request.n
                events.put_nowait(delta)
        events.put_nowait(None)
    except Exception as error:
        events.put_nowait(error)


def _total(usages: list[Usage]) -> Usage:
    names = Usage.__struct_fields__
    return msgspec.convert({name: sum(getattr(usage, name) for usage in usages) for name in names}, Usage)
