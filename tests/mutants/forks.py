"""Runs a function in a fork of this process, with a limit of time, and ends all processes that it started."""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Of addresses of a fork: a mutant may loop and keep more at every turn.
MOST_BYTES = 8 << 30


def forked(action: Callable[[], Any], limit: float = float("inf")) -> Any:
    """Return what `action` returns, through JSON; None if its process ends otherwise, by too much memory too, or after
    `limit` seconds."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        try:
            said = json.dumps(action()).encode() + b"\n"
            with os.fdopen(write, "wb") as pipe:
                pipe.write(said)
        finally:
            os._exit(0)
    os.close(write)
    said = _line_of(read, time.monotonic() + limit)
    os.close(read)
    # Also before the child made its group: then the group is absent.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said) if said.endswith(b"\n") else None


def _line_of(pipe: int, deadline: float) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        # A wait is bounded, whatever the deadline.
        ready, _, _ = select.select([pipe], [], [], max(0.0, min(left, 60.0)))
        if ready:
            part = os.read(pipe, 1 << 20)
            if not part:
                break
            said += part
        elif left <= 0:
            break
    return said
