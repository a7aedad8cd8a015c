"""Work on a thread whose caller left meanwhile: it asks between its steps whether its result is still wanted."""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_ABANDONED: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class AbandonedWorkError(Exception):
    """The caller of the work has left."""


def require_wanted() -> None:
    """Raise AbandonedWorkError in work that `run_until` runs, once its event is set."""
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedWorkError


def run_until(abandoned: threading.Event, work: Callable[[], T]) -> T:
    """Return the result of `work`. Raises AbandonedWorkError where the event was set before, or at the next look."""
    token = _ABANDONED.set(abandoned)
    try:
        require_wanted()
        return work()
    finally:
        _ABANDONED.reset(token)
