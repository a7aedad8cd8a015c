"""Asynchronous servers for synchronous tests: each is entered, and left, on a thread with an event loop of its own."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

Server = TypeVar("Server")


@contextmanager
def on_a_thread(
    server: AbstractAsyncContextManager[Server],
) -> Iterator[tuple[Server, asyncio.AbstractEventLoop]]:
    """What entering gives, and the thread's loop, until the block ends. Raises what entering raises."""
    entered: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()
    left = asyncio.Event()

    async def serve() -> None:
        try:
            async with server as given:
                entered.set_result((given, asyncio.get_running_loop()))
                await left.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        given, loop = entered.result()
        try:
            yield given, loop
        finally:
            loop.call_soon_threadsafe(left.set)
    finally:
        thread.join()
