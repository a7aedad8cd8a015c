"""The live knobs of one part of the gateway: a struct, kept in a small file that every gateway process follows; their
values are checked and described alike."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gateway.base.errors import bad_request
from gateway.base.gone import GONE_KNOBS
from gateway.base.stores.followed_file import FollowedFile


def check_knobs(values: Mapping[str, Any], knobs: type[msgspec.Struct], kind: str) -> None:
    """Raises `ApiError` 400 naming the first of `values` that is no field of `knobs`, or has an invalid value.

    `kind` completes "NAME is no …".
    """
    names = knobs.__struct_fields__
    for name, value in values.items():
        if name in GONE_KNOBS:
            raise bad_request(f"{name} is gone: {GONE_KNOBS[name]}.", name, "unknown_parameter")
        if name not in names:
            raise bad_request(f"{name} is no {kind}; there are {', '.join(names)}.", name, "unknown_parameter")
        if isinstance(value, float) and not math.isfinite(value):
            raise bad_request(f"{name} is {value}; it must be finite.", name, "invalid_value")
        try:
            msgspec.convert({name: value}, knobs)
        except msgspec.ValidationError as error:
            from tiers.dialects.decoding import explained

            raise bad_request(f"{name} is {value!r}: {explained(error, knobs)}.", name, "invalid_value") from None


def knob_schemas(knobs: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field of `knobs`: type, bounds, default and description."""
    properties: dict[str, dict[str, Any]] = msgspec.json.schema(knobs)["$defs"][knobs.__name__]["properties"]
    return properties


log = logging.getLogger(__name__)

Knobs = TypeVar("Knobs", bound=msgspec.Struct)


class KnobFile(Generic[Knobs]):
    """The current `knobs`, from `path`; None keeps them in memory only. All fields of the struct have defaults.

    `part`: whose knobs they are, for messages and for the history. A file that cannot be used changes nothing; names
    of another version's knobs in it are ignored, with a warning here or at the start (`gateway.base.gone`).
    """

    def __init__(self, knobs: type[Knobs], part: str, path: Path | None = None) -> None:
        self.part, self._struct = part, knobs
        self.active = knobs()
        self._file = FollowedFile(path, self._take, f"knobs of {part}")
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        self._file.refresh()

    async def follow(self, seconds: float) -> None:
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
        stored = msgspec.json.decode(content, type=dict[str, Any])
        unknown = sorted(stored.keys() - {*self._struct.__struct_fields__})
        if strange := [name for name in unknown if name not in GONE_KNOBS]:
            log.warning("unknown knobs of %s are ignored: %s", self.part, ", ".join(strange))
        self.active = self._checked({name: value for name, value in stored.items() if name not in unknown})

    def _checked(self, values: Mapping[str, Any]) -> Knobs:
        defaults = msgspec.structs.asdict(self._struct())
        fields = {name: defaults.get(name) if value is None else value for name, value in values.items()}
        check_knobs(fields, self._struct, f"knob of {self.part}")
        return msgspec.convert(fields, self._struct)
