"""Live knobs of one part, kept in one small file of the data folder that every gateway process follows."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec

from gateway.knob_values import check_knobs, file_state
from inference_core.loaders.atomic_file import atomic_file

log = logging.getLogger(__name__)

Knobs = TypeVar("Knobs", bound=msgspec.Struct)


class KnobFile(Generic[Knobs]):
    """The knobs in force, from `path`; None keeps them in memory alone. Subclasses say which, and what one is called.

    A file that cannot be used changes nothing: the knobs before it stay, and the log says why.
    """

    knobs: ClassVar[type[msgspec.Struct]]
    kind: ClassVar[str]

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.in_force = self._checked({})
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        state = file_state(self._path)
        if self._path is None or state is None or state == self._seen:
            return
        self._seen = state
        try:
            self.in_force = self._checked(msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any]))
        except Exception as error:
            log.error("%ss stay as they are: %s: %s", self.kind, self._path, error)

    async def follow(self, seconds: float) -> None:
        """Look at the file every `seconds`."""
        while True:
            await asyncio.sleep(seconds)
            self.refresh()

    def change(self, changes: Mapping[str, Any]) -> tuple[Knobs, Knobs]:
        """Put `changes` in force, all or none, here at once and in other processes soon; (before, after).

        None puts a knob back to its default. Raises `ApiError` 400 naming the knob, and OSError if the file cannot
        be written; then nothing has changed.
        """
        before = self.in_force
        after = self._checked(msgspec.structs.asdict(before) | dict(changes))
        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(after), indent=2) + b"\n")
            self._seen = file_state(self._path)
        self.in_force = after
        return before, after

    @classmethod
    def schemas(cls) -> dict[str, dict[str, Any]]:
        """By knob its JSON schema: type, bounds, default and description."""
        definitions = msgspec.json.schema(cls.knobs)["$defs"]
        properties: dict[str, dict[str, Any]] = definitions[cls.knobs.__name__]["properties"]
        return properties

    def _checked(self, values: Mapping[str, Any]) -> Knobs:
        defaults = msgspec.structs.asdict(self.knobs())
        given = {name: defaults.get(name) if value is None else value for name, value in values.items()}
        check_knobs(given, self.knobs, self.kind)
        return cast(Knobs, msgspec.convert(given, self.knobs))
