"""Background retries, for dependencies that may start after the gateway."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(work: Awaitable[object]) -> AsyncIterator[None]:
    """Run `work` as a task while the context is open."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_it_works(
    attempt: Callable[[], Awaitable[object]],
    name: str,
    failures: dict[str, str],
    seconds: float = 1.0,
    *,
    fatal: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Await `attempt()` every `seconds` until it does not raise; meanwhile `failures[name]` says why. Raises `fatal`
    errors."""
    while True:
        try:
            await attempt()
        except fatal:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if failures.get(name) != reason:
                log.warning("%s: %s; trying again every %g s", name, reason, seconds)
            failures[name] = reason
            await asyncio.sleep(seconds)
        else:
            if failures.pop(name, None) is not None:
                log.info("%s: works now", name)
            return
