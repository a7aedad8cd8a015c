"""Waiting for what happens in another process or thread, which has no event for it here."""

import threading
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], every: float = 0.02) -> None:
    """Ask until it holds; the test's own time limit ends it."""
    while not condition():
        threading.Event().wait(every)
