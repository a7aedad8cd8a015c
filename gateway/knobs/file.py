"""The live knobs of one part of the gateway: a struct, kept in a small file that every gateway process follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gateway.knobs.followed_file import FollowedFile
from gateway.knobs.values import check_knobs

Knobs = TypeVar("Knobs", bound=msgspec.Struct)


class KnobFile(Generic[Knobs]):
    """The `knobs` in force, from `path`; None keeps them in memory alone. All fields of the struct have defaults.

    `part`: whose knobs they are, for messages and for the history. A file that cannot be used changes nothing.
    """

    def __init__(self, knobs: type[Knobs], part: str, path: Path | None = None) -> None:
        self.part = part
        self.in_force = knobs()
        self._struct = knobs
        self._file = FollowedFile(path, self._take, f"knobs of {part}")
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        self._file.refresh()

    async def follow(self, seconds: float) -> None:
        """Look at the file every `seconds`."""
        await self._file.follow(seconds)

    def change(self, changes: Mapping[str, Any]) -> tuple[Knobs, Knobs]:
        """Put `changes` in force, all or none, here at once and in other processes soon; (before, after).

        None puts a knob back to its default. Raises `ApiError` 400 naming the knob, and OSError if the file cannot
        be written; then nothing has changed.
        """
        self.refresh()
        before = self.in_force
        after = self._checked(msgspec.structs.asdict(before) | dict(changes))
        self._file.replace(after)
        self.in_force = after
        return before, after

    def _take(self, content: bytes) -> None:
        self.in_force = self._checked(msgspec.json.decode(content, type=dict[str, Any]))

    def _checked(self, values: Mapping[str, Any]) -> Knobs:
        defaults = msgspec.structs.asdict(self._struct())
        given = {name: defaults.get(name) if value is None else value for name, value in values.items()}
        check_knobs(given, self._struct, f"knob of {self.part}")
        return msgspec.convert(given, self._struct)
