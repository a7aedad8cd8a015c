"""A recording: what a caller asks, what servers must get and what they send, what the caller must get. Read from files,
laid over its base, written back with few lines."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
WIDTH = 120
Json = dict[str, Any]


class Recording(NamedTuple):
    """One case of a file. `fields`: all of them, those of its base too."""

    file: Path
    name: str
    fields: Json

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.file.parent.name}/{self.file.stem}: {self.name}"


def files() -> list[Path]:
    """Return the files of recordings."""
    return sorted(FOLDER.glob("*/*.json"))


def recordings(file: Path) -> Iterator[Recording]:
    """Yield the cases of a file, each laid over the file's own fields, and these over the base that they name."""
    content = json.loads(file.read_text())
    shared = {name: value for name, value in content.items() if name != "cases"}
    for name, own in content["cases"].items():
        yield Recording(file, name, based(merged(shared, own)))


def based(fields: Json) -> Json:
    """Return fields laid over those of the base that they name."""
    name = fields.pop("base", None)
    return fields if name is None else merged(based(dict(_bases()[name])), fields)


@cache
def _bases() -> Json:
    bases: Json = json.loads((FOLDER / "bases.json").read_text())
    return bases


def merged(before: Any, patch: Any) -> Any:
    """Return a value with a JSON merge patch: an object's fields are replaced one by one, and null removes one that is
    there. Null for one that is not stays."""
    if not isinstance(patch, dict):
        return patch
    patched = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None and patched.get(name) is not None:
            del patched[name]
        else:
            patched[name] = merged(patched[name], value) if name in patched else value
    return patched


def difference(before: Any, after: Any) -> Any:
    """Return the JSON merge patch from one value to another."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] != value:
            patch[name] = difference(before[name], value)
    return patch


def pretty(value: Any, indent: int = 0, column: int = 0, after: int = 0) -> str:
    """Return the JSON of a value: on one line where it fits, else an entry a line; one entry alone stays where it is.
    `column`: where it begins; `after`: how many characters follow it on its last line."""
    line = json.dumps(value, ensure_ascii=False)
    if column + len(line) + after <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    keys = [json.dumps(name, ensure_ascii=False) + ": " for name in value] if isinstance(value, dict) else []
    values = list(value.values() if isinstance(value, dict) else value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if len(values) == 1:
        key = keys[0] if keys else ""
        return opening + key + pretty(values[0], indent, column + 1 + len(key), after + 1) + closing
    lines = []
    for index, entry in enumerate(values):
        key = keys[index] if keys else ""
        lines.append(key + pretty(entry, indent + 1, indent + 1 + len(key), after + 1))
    separator = "\n" + " " * (indent + 1)
    return opening + separator + f",{separator}".join(lines) + closing
