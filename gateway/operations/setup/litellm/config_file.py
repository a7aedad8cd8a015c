"""LiteLLM's config.yaml as it is read, the account of what becomes of each of its fields, and its sections, which note
what is taken of them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.operations.setup.found_tiers import SetupError
from inference_core.io.files import read_text_file

ENVIRONMENT = "os.environ/"
UNKNOWN = "AIO has nothing like it, or not for this value"
_TWICE = "the key occurs again in the same mapping, and the last value holds, as with LiteLLM"

_INDEX = re.compile(r"\[(\d+)\]")


class Account:
    """The fields of a file, by path, each with what it became, or why nothing. A field stands for all below it."""

    def __init__(self) -> None:
        self.carried: dict[str, str] = {}
        self.left: dict[str, str] = {}

    def carry(self, path: str, text: str) -> None:
        """Note what a field became."""
        self.carried[path] = text

    def leave(self, path: str, why: str) -> None:
        """Note why a field became nothing, nor what is below it."""
        self.carried = {place: text for place, text in self.carried.items() if path not in upwards(place)}
        self.left[path] = why

    def close(self, document: Mapping[str, Any]) -> None:
        """Name the fields that have no note."""
        for path in _leaves(document, ""):
            if not any(place in self.carried or place in self.left for place in upwards(path)):
                self.leave(path, UNKNOWN)


class Section:
    """A mapping of the file, at `path`, whose fields are noted in `account`."""

    def __init__(self, path: str, values: Mapping[str, Any], account: Account) -> None:
        self.path, self.values, self._account = path, values, account

    def section(self, name: str) -> "Section":
        """Return the mapping of this name; an empty one without it."""
        return Section(f"{self.path}.{name}" if self.path else name, mapping(self.values.get(name)), self._account)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def carry(self, name: str, text: str) -> None:
        """Note what a field became."""
        self._account.carry(f"{self.path}.{name}", text)

    def leave(self, name: str, why: str) -> None:
        """Note why a field became nothing."""
        self._account.leave(f"{self.path}.{name}", why)

    def number(self, name: str, text: str) -> float | None:
        """Take a positive number, which became `text`; None for anything else."""
        if (found := number(self.values.get(name))) is not None:
            self.carry(name, text)
        return found

    def whole(self, name: str, text: str, least: int = 1) -> int | None:
        """Take a whole number in the same way."""
        found = number(self.values.get(name))
        if found is None or not least <= found < 1e9 or found != int(found):
            return None
        self.carry(name, text)
        return int(found)


def read_config(path: Path, account: Account) -> dict[str, Any]:
    """Return the content of the file and of those that it includes. Of a key that occurs twice in one mapping the last
    value holds, as with LiteLLM, and `account` names it. Raises `SetupError` if it is no configuration."""
    found = _read(path, account)
    names = found.get("include")
    for name in names if isinstance(names, list) else []:
        account.carry("include", "read with it")
        try:
            included = _read(path.parent / str(name), account)
        except SetupError as error:
            account.leave(f"include, {name}", str(error))
            continue
        for key, value in included.items():
            both = isinstance(value, list) and isinstance(found.get(key), list)
            found[key] = [*found[key], *value] if both else value
    if not isinstance(found.get("model_list"), list):
        raise SetupError(f"{path} has no model_list: give the config.yaml of a LiteLLM proxy")
    return found


def _read(path: Path, account: Account) -> dict[str, Any]:
    # Imported here: nothing else reads YAML.
    import yaml

    try:
        text = read_text_file(path)
        repeated, found = list(_repeated(yaml.compose(text, yaml.SafeLoader))), yaml.safe_load(text)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SetupError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    for node in repeated:
        account.leave(f"{path.name} line {node.start_mark.line + 1}, {node.value}", _TWICE)
    return found if isinstance(found, dict) else {}


def _repeated(root: Any) -> Iterator[Any]:
    """Yield the nodes of keys that occur again in their mapping."""
    waiting, met = [root], set()
    while waiting:
        node = waiting.pop()
        # Anchors are met once for each of their aliases.
        if id(node) in met or node is None or isinstance(node.value, str):
            continue
        met.add(id(node))
        last: dict[str, Any] = {}
        for part in node.value:
            if isinstance(part, tuple) and isinstance(part[0].value, str) and part[0].value != "<<":
                if (earlier := last.get(part[0].value)) is not None:
                    yield earlier
                last[part[0].value] = part[0]
            waiting += part if isinstance(part, tuple) else [part]


def variable_of(value: object) -> str | None:
    """Return the environment variable that a value `os.environ/NAME`, or `${NAME}` of a template, names."""
    name = "([A-Za-z_][A-Za-z0-9_]*)"
    found = re.fullmatch(rf"{ENVIRONMENT}{name}|\$\{{{name}\}}", value) if isinstance(value, str) else None
    return None if found is None else found[1] or found[2]


def mapping(value: object) -> dict[str, Any]:
    """Return a value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """Return a positive number, also as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def _leaves(value: object, path: str) -> Iterator[str]:
    if value is None or value in ({}, []):
        # Nothing is lost with it.
        return
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}[{place}]")
    else:
        yield path


def upwards(path: str) -> Iterator[str]:
    """Yield the path of a field, then those of what it is part of."""
    yield path
    for end in range(len(path) - 1, 0, -1):
        if path[end] in ".[,":
            yield path[:end]


def report_lines(fields: Mapping[str, str]) -> list[str]:
    """Return a line for each kind of field and text; of the same field of several entries one."""
    places: dict[tuple[str, str], list[str]] = {}
    for path, text in fields.items():
        places.setdefault((_INDEX.sub("[]", path), text), []).append(path)
    return [f"{_together(paths)}: {text}" for (_, text), paths in places.items()]


def _together(paths: list[str]) -> str:
    """Return paths that differ in their numbers as one, with those of the first list: `model_list[0-2,5].a`."""
    if len(paths) == 1 or (first := _INDEX.search(paths[0])) is None:
        return ", ".join(paths)
    numbers = sorted({int(found[1]) for path in paths if (found := _INDEX.search(path))})
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    listed = ",".join("-".join(map(str, span)) for span in spans)
    return f"{paths[0][: first.start()]}[{listed}]{_INDEX.sub('[]', paths[0][first.end() :])}"
