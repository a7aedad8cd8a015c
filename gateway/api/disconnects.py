"""Noticing that the caller hung up while there is nothing to send yet, and dropping the work at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from gateway.errors import ClientGoneError

Result = TypeVar("Result")


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work`, but cancel it as soon as the caller disconnects; then raises `ClientGoneError`.

    The request's body must have been read. Once the response streams, litestar listens for the disconnect itself.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
