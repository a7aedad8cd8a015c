"""Waits for events in another process, thread or task that cannot be awaited here."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], every: float = 0.02) -> None:
    """Poll until it holds; the test's own time limit ends it."""
    while not condition():
        threading.Event().wait(every)


async def eventually(condition: Callable[[], Any], every: float = 0.005) -> Any:
    """The same on the event loop; awaitables are awaited. Returns the result that held."""
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(every)
