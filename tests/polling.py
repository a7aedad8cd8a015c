"""Waiting for what happens in another process, thread or task, which has no event for it here."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], every: float = 0.02) -> None:
    """Ask until it holds; the test's own time limit ends it."""
    while not condition():
        threading.Event().wait(every)


async def eventually(condition: Callable[[], Any], every: float = 0.005) -> Any:
    """The same while the loop goes on; what is awaitable is awaited. What held."""
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(every)
