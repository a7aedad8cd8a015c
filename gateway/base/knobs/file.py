"""The live knobs of one part of the gateway: a struct, kept in a small file that every gateway process follows."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gateway.base.knobs.values import check_knobs
from gateway.base.stores.followed_file import FollowedFile

log = logging.getLogger(__name__)

Knobs = TypeVar("Knobs", bound=msgspec.Struct)


class KnobFile(Generic[Knobs]):
    """The current `knobs`, from `path`; None keeps them in memory only. All fields of the struct have defaults.

    `part`: whose knobs they are, for messages and for the history. A file that cannot be used changes nothing. Names of
    `retired` knobs in it are ignored, with one warning.
    """

    def __init__(
        self, knobs: type[Knobs], part: str, path: Path | None = None, retired: Collection[str] = frozenset()
    ) -> None:
        self.part, self._retired, self._warned = part, frozenset(retired), False
        self.active = knobs()
        self._struct = knobs
        self._file = FollowedFile(path, self._take, f"knobs of {part}")
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        self._file.refresh()

    async def follow(self, seconds: float) -> None:
        """Check the file every `seconds`."""
        await self._file.follow(seconds)

    def change(self, changes: Mapping[str, Any]) -> tuple[Knobs, Knobs]:
        """Apply `changes`, all or none, here at once and in other processes soon; return (before, after).

        None restores a knob's default. Raises `ApiError` 400 naming the knob, and OSError if the file cannot be
        written; then nothing has changed.
        """
        self.refresh()
        before = self.active
        after = self._checked(msgspec.structs.asdict(before) | dict(changes))
        self._file.replace(after)
        self.active = after
        return before, after

    def _take(self, content: bytes) -> None:
        given = msgspec.json.decode(content, type=dict[str, Any])
        if (old := self._retired & given.keys()) and not self._warned:
            self._warned = True
            log.warning("knobs of %s that no longer exist are ignored: %s", self.part, ", ".join(sorted(old)))
        self.active = self._checked({name: value for name, value in given.items() if name not in self._retired})

    def _checked(self, values: Mapping[str, Any]) -> Knobs:
        defaults = msgspec.structs.asdict(self._struct())
        given = {name: defaults.get(name) if value is None else value for name, value in values.items()}
        check_knobs(given, self._struct, f"knob of {self.part}")
        return msgspec.convert(given, self._struct)
