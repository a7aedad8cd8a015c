"""LiteLLM's config.yaml as it is read, and the account of what becomes of each of its fields."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.operations.setup.given_tiers import SetupError

ENVIRONMENT = "os.environ/"
UNKNOWN = "AIO has nothing like it, or not for this value"


class Account:
    """The fields of a file, by path, each with what it became, or why it became nothing. A field stands for all below
    it."""

    def __init__(self) -> None:
        self.carried: dict[str, str] = {}
        self.left: dict[str, str] = {}

    def carry(self, path: str, text: str) -> None:
        """Note what a field became."""
        self.carried[path] = text

    def leave(self, path: str, why: str) -> None:
        """Note why a field became nothing, nor what is below it."""
        self.carried = {place: text for place, text in self.carried.items() if path not in _upwards(place)}
        self.left[path] = why

    def close(self, document: Mapping[str, Any]) -> None:
        """Name the fields that have no note."""
        for path in _leaves(document, ""):
            if not any(place in self.carried or place in self.left for place in _upwards(path)):
                self.leave(path, UNKNOWN)


def read_config(path: Path) -> dict[str, Any]:
    """Return the file's content. Raises `SetupError`; for a key that occurs twice, too, as its first value is lost."""
    # Imported here: nothing else reads YAML.
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        twice, found = _twice(yaml.compose(text, yaml.SafeLoader)), yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SetupError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if twice is not None:
        raise SetupError(f"{path}, line {twice.start_mark.line + 1}: {twice.value} occurs twice in one mapping")
    if not isinstance(found, dict) or not isinstance(found.get("model_list"), list):
        raise SetupError(f"{path} has no model_list: give the config.yaml of a LiteLLM proxy")
    return found


def _twice(root: Any) -> Any:
    """Return the node of a key that its mapping has already; None if there is none."""
    waiting, met = [root], set()
    while waiting:
        node = waiting.pop()
        # Anchors are met once for each of their aliases.
        if id(node) in met or node is None or isinstance(node.value, str):
            continue
        met.add(id(node))
        keys: set[str] = set()
        for part in node.value:
            if isinstance(part, tuple):
                if part[0].value in keys and part[0].value != "<<":
                    return part[0]
                keys.add(part[0].value if isinstance(part[0].value, str) else "")
            waiting += part if isinstance(part, tuple) else [part]
    return None


def variable_of(value: object) -> str | None:
    """Return the environment variable that a value `os.environ/NAME` names."""
    found = re.fullmatch(rf"{ENVIRONMENT}([A-Za-z_][A-Za-z0-9_]*)", value) if isinstance(value, str) else None
    return None if found is None else found[1]


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
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and any(isinstance(each, dict) for each in value):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}[{place}]")
    else:
        yield path


def _upwards(path: str) -> Iterator[str]:
    yield path
    for end in reversed([found.start() for found in re.finditer(r"[.\[]", path)]):
        yield path[:end]
