"""What becomes of each field of another gateway's file: the account of them, and the rows that say it."""

import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any

import msgspec

from tiers.catalog.replica_spec import BalancingSpec, PerMinute
from tiers.catalog.tier_spec import NonNegative, Positive, RemoteSpec, TierSpec

UNKNOWN = "AIO has nothing like it, or not for this value"
_INDEX = re.compile(r"\[(\d+)\]")
_VARIABLE = re.compile(r"(?:os\.environ/|env(?:\.|::)|\$)(\w+)|\$\{(\w+)\}|\{\{\s*(\w+)\s*\}\}")
_OWN_TYPES: Mapping[str, Any] = {
    "key": str, "credentials": str, "mode": str, "base_model": str, "order": Positive, "body": dict[str, Any],
    "weight": typing.Annotated[float, msgspec.Meta(ge=0, le=1000)], "server": dict[str, str],
    "requests_per_minute": PerMinute, "tokens_per_minute": PerMinute, "balancing": BalancingSpec,
}  # fmt: skip


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
        self.carried = {each: text for each, text in self.carried.items() if path not in _upwards(each)}
        self.left[path] = why

    def close(self, document: Mapping[str, Any]) -> None:
        """Name the fields that have no note."""
        for path in _leaves(document, ""):
            if not any(each in self.carried or each in self.left for each in _upwards(path)):
                self.leave(path, UNKNOWN)

    def leave_rows(self, values: Mapping[str, Any], path: str, rows: Mapping[str, Sequence[str]]) -> None:
        """Note the reasons for those of `values`, at `path`, that have one."""
        for why, field in ((why, field) for why, fields in rows.items() for field in fields):
            if value_at(values, field) not in (None, {}, []) and below(path, field) not in self.carried:
                self.leave(below(path, field), why)

    def report(self) -> str:
        """Return what became of every field, one line for each kind of field and what became of it."""
        parts = (("carried over", self.carried), ("not carried over", self.left))
        return "\n\n".join(
            f"{head}:\n" + "\n".join(f"  {line}" for line in report_lines(fields)) for head, fields in parts if fields
        )


class Fields(dict[str, Any]):
    """Values by their name in the catalogue. `paths`: where each stands in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, str] = {}

    def read(self, values: Mapping[str, Any], path: str, rows: Mapping[str, str], account: Account) -> None:
        """Take those of `values`, at `path`, that a row names and whose value its right side can have."""
        for row, becomes in rows.items():
            field, _, only = row.partition("=")
            value = value_at(values, field)
            target, _, change = becomes.partition(" ")
            if becomes.startswith("aio "):
                target, change = becomes, ""
            if only and value is not (only == "true"):
                continue
            if (converted := _converted(target, value, change)) is not None:
                self[target] = converted
                self.paths[target] = below(path, field)
                usual = "its server" if target.startswith("server.") else target.replace("={}", "")
                account.carry(below(path, field), tables()["texts"].get(target, usual))


@cache
def tables() -> dict[str, Any]:
    """Return the rows of `fields.toml` and `servers.toml`."""
    texts = [(files(__package__) / f"{name}.toml").read_text(encoding="utf-8") for name in ("fields", "servers")]
    return tomllib.loads(texts[0]) | tomllib.loads(texts[1])


def _converted(target: str, value: object, change: str) -> Any:
    """Return a value as the catalogue's field or the setting takes it, changed as a row says; None if it cannot."""
    if value is None or (isinstance(value, bool) and "capabilities" not in target and "=" not in target):
        return None
    try:
        if change:
            sign, number = change[0], float(change[1:])
            value = round(float(value) * number if sign == "*" else float(value) + number, 6)  # type: ignore[arg-type]
        converted = msgspec.convert(value, _type_of(target), strict=False)
        return converted if not isinstance(converted, float) or isfinite(converted) else None
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
        return None


@cache
def _type_of(target: str) -> Any:
    """Return the type of a field of the catalogue, of a setting's value or of a command's."""
    if "=" in target:
        return NonNegative if "={}" in target else Any
    own = {name: kind for spec in (TierSpec, RemoteSpec) for name, kind in _types(spec).items()} | dict(_OWN_TYPES)
    first, _, rest = target.partition(".")
    return own[first] if not rest else str if first == "server" else _types(own[first]).get(rest, Any)


def _types(spec: Any) -> dict[str, Any]:
    return typing.get_type_hints(spec, include_extras=True) if isinstance(spec, type) else {}


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path below a table; None without one."""
    if path in values:
        return values[path]
    first, dot, rest = path.partition(".")
    return value_at(mapping(values.get(first)), rest) if dot else None


def below(path: str, field: str) -> str:
    """Return the path of a field of a table."""
    return f"{path}.{field}" if path else field


def variable_of(value: object) -> str | None:
    """Return the environment variable that a value names: `os.environ/X`, `env.X`, `$X`, `${X}` or `{{X}}`."""
    match = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else next(filter(None, match.groups()))


def mapping(value: object) -> dict[str, Any]:
    """Return a value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _leaves(value: object, path: str) -> Iterator[str]:
    if value is None or value in ({}, []):
        # Nothing is lost with it.
        return
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, below(path, str(key)))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}[{index}]")
    else:
        yield path


def _upwards(path: str) -> Iterator[str]:
    """Yield the path of a field, then those of what it is part of."""
    yield path
    for end in range(len(path) - 1, 0, -1):
        if path[end] in ".[,":
            yield path[:end]


def report_lines(fields: Mapping[str, str]) -> list[str]:
    """Return a line for each kind of field and text; of the same field of several entries one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path, text in fields.items():
        groups.setdefault((_INDEX.sub("[]", path), text), []).append(path)
    return [f"{_together(paths)}: {text}" for (_, text), paths in groups.items()]


def _together(paths: list[str]) -> str:
    """Return paths that differ in their numbers as one, with those of the first list: `model_list[0,2,5].a`."""
    if len(paths) == 1 or (first := _INDEX.search(paths[0])) is None:
        return ", ".join(paths)
    numbers = sorted({int(match[1]) for path in paths if (match := _INDEX.search(path))})
    rest = _INDEX.sub("[]", paths[0][first.end() :])
    return f"{paths[0][: first.start()]}[{','.join(map(str, numbers))}]{rest}"
