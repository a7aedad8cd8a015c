"""A small JSON file shared by several processes: any of them replaces it, and all of them notice."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from inference_core.io.atomic_file import atomic_file

log = logging.getLogger(__name__)


class FollowedFile:
    """`take` gets the bytes of `path` whenever another process has replaced them; None if the file is gone.

    A file that cannot be used changes nothing: the previous values stay, and the log says why. `what` starts that line.
    """

    def __init__(self, path: Path | None, take: Callable[[bytes], object], what: str) -> None:
        self._path, self._take, self._what = path, take, what
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        state = _state(self._path)
        if self._path is None or state is None or state == self._seen:
            return
        self._seen = state
        try:
            self._take(self._path.read_bytes())
        except Exception as error:
            log.error("%s stay as they are: %s: %s", self._what, self._path, error)

    async def follow(self, seconds: float) -> None:
        """Check the file every `seconds`."""
        while True:
            await asyncio.sleep(seconds)
            self.refresh()

    def replace(self, content: Any) -> None:
        """Write `content` for the other processes; this one has it already. Raises OSError, and then nothing has
        changed."""
        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
            self._seen = _state(self._path)


def _state(path: Path | None) -> tuple[int, int] | None:
    """Return what differs after a replacement; None without a file."""
    try:
        state = path.stat() if path is not None else None
    except OSError:
        return None
    return None if state is None else (state.st_mtime_ns, state.st_ino)
