"""SIGHUP reloads the catalogue."""

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.operations.reload.catalogue_reload import CatalogueReload
from inference_core.io.background_tasks import once
from tiers.errors import CatalogError

log = logging.getLogger(__name__)


@contextmanager
def reloading_on_hangup(reload: CatalogueReload) -> Iterator[None]:
    """While the context is open, a SIGHUP reloads; a rejected catalogue is logged. Signals reach only a process's main
    thread."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield
        return
    tasks: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = once(_reload(reload), "reload")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _reload(reload: CatalogueReload) -> None:
    try:
        await reload.reload("signal", "SIGHUP")
    except CatalogError as error:
        log.error("%s", error)
    except Exception:
        log.exception("the catalogue was not reloaded")
