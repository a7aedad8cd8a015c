"""Answer single requests from many threads in batches, by one thread."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_ITEMS = 32
MAX_WAIT_SECONDS = 0.001
IDLE_SECONDS = 10.0


class MicroBatcher(Generic[Item, Result]):
    """Calls `run` with the items submitted while it was busy; order is kept, and every item gets its own result.

    A single request never waits. After a batch with several items the next one is held open for at most `max_wait`
    seconds. The thread ends after `idle` seconds without items, so a replaced encoder holds no thread and memory.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], list[Result]],
        *,
        max_items: int = MAX_ITEMS,
        max_wait: float = MAX_WAIT_SECONDS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self._run, self._max_items, self._max_wait, self._idle = run, max_items, max_wait, idle
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, item: Item) -> "Future[Result]":
        """Return a future of `run`'s result for `item`; an error of `run` fails its whole batch."""
        future: Future[Result] = Future()
        with self._lock:
            self._queue.put((item, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="encoder-micro-batches", daemon=True)
                self._thread.start()
        return future

    def _work(self) -> None:
        together = False
        while True:
            try:
                batch = [self._queue.get(timeout=self._idle)]
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            self._gather(batch, time.monotonic() + self._max_wait if together else 0.0)
            together = len(batch) > 1
            self._answer(batch)

    def _gather(self, batch: list[tuple[Item, "Future[Result]"]], until: float) -> None:
        """Add queued items, and those that arrive before `until`."""
        while len(batch) < self._max_items:
            left = until - time.monotonic()
            try:
                batch.append(self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait())
            except queue.Empty:
                return

    def _answer(self, batch: list[tuple[Item, "Future[Result]"]]) -> None:
        wanted = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            results = self._run([item for item, _ in wanted])
        except Exception as error:
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), result in zip(wanted, results, strict=True):
            future.set_result(result)
