"""The state of an engine process, as its owner reports it to the tiers that it serves."""

from collections.abc import Callable
from typing import Literal

import msgspec

EngineState = Literal["starting", "ready", "down"]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`detail`: what it is doing or what went wrong, as one sentence. `url`: the base URL of its API, set while it is
    ready. `start`: how many times the program was started; every start after the first is a restart. `context`: the
    longest sequence in tokens that it reports, if it does. `log`: the file of its output. `key`: what requests carry;
    it is made at every start and never shown."""

    state: EngineState
    detail: str
    program: str = ""
    url: str = ""
    start: int = 0
    context: int | None = None
    log: str = ""
    key: str = ""

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.start - 1)


StatusOf = Callable[[], EngineStatus]
"""Returns the latest known state of one engine without I/O."""
