"""Merge several async generators, or several answers to one, in the order in which their items arrive."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from tiers.tier import Delta

T = TypeVar("T")


async def merged_answers(answers: Sequence[AsyncGenerator[Delta, None]], n: int) -> AsyncGenerator[Delta, None]:
    """Yield the deltas of all `answers`, with `n` choices each, as those of one: choice `j` of answer `i` has index
    `i * n + j`, and one end comes last."""
    numbered = [_numbered(answer, place * n) for place, answer in enumerate(answers)]
    ends: list[Delta] = []
    async with aclosing(merge(numbered)) as deltas:
        async for delta in deltas:
            if delta.end is None:
                yield delta
            else:
                ends.append(delta)
    yield Delta.last_of(ends)


async def _numbered(answer: AsyncGenerator[Delta, None], first: int) -> AsyncGenerator[Delta, None]:
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            delta.index += first
            yield delta


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all `streams`; the first error ends it. Closing closes every stream before it returns."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        open_streams = len(streams)
        while open_streams:
            received = await queue.get()
            if not isinstance(received, _End):
                yield received
                continue
            if received.error is not None:
                raise received.error
            open_streams -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


class _End:
    """A stream has ended, with `error` if it is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def _pump(stream: AsyncGenerator[T, None], queue: "asyncio.Queue[T | _End]") -> None:
    end = _End()
    try:
        async for item in stream:
            await queue.put(item)
    except Exception as error:
        end = _End(error)
    await queue.put(end)
