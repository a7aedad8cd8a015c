"""A small file that says what is current, shared by several processes: any of them replaces it, and all notice."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from inference_core.io.files import atomic_file

log = logging.getLogger(__name__)

# States of a file that was not read yet, and of one that could not be; None is that of no file.
_UNREAD, _UNREADABLE = (0, 0), (0, 1)


class FollowedFile:
    """`take` gets the bytes of `path` at the first refresh and whenever another process has replaced them; `removed` is
    called where there is no file, or none any more. Without a `path` there never is.

    What `take` refuses changes nothing: the previous values stay, and the log says why; `what`, a plural, starts that
    line. A file that cannot be read is tried again at the next refresh.
    """

    def __init__(
        self,
        path: Path | None,
        take: Callable[[bytes], object],
        what: str,
        removed: Callable[[], object] = lambda: None,
    ) -> None:
        self._path, self._take, self._what, self._removed = path, take, what, removed
        self._seen: tuple[int, int] | None = _UNREAD

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        state, before = self._state(), self._seen
        if state == before:
            return
        try:
            content = None if self._path is None or state is None else self._path.read_bytes()
        except OSError as error:
            self._seen = _UNREADABLE
            if before != _UNREADABLE:
                log.error("%s stay as they are: %s", self._what, error)
            return
        self._seen = state
        try:
            self._removed() if content is None else self._take(content)
        except Exception as error:
            log.error("%s stay as they are: %s: %s", self._what, self._path, error)

    async def follow(self, seconds: float) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(seconds)

    async def follow_in_thread(self, seconds: float) -> None:
        """The same where `take` takes long: a thread calls it."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(seconds)

    def replace(self, content: Any) -> None:
        """Write `content` for the other processes; this one has it. Raises OSError, and then nothing has changed."""
        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
            self._seen = self._state()

    def _state(self) -> tuple[int, int] | None:
        """What differs after a replacement."""
        try:
            state = self._path.stat() if self._path is not None else None
        except OSError:
            return None
        return None if state is None else (state.st_mtime_ns, state.st_ino)
