"""Decode the parts of a caller's request, and say what is wrong with one: its path, and what is allowed there."""

import re
from collections.abc import Iterator
from enum import EnumType
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tiers.errors import BadRequestError

T = TypeVar("T")

UNKNOWN, INVALID, MISSING = "unknown_parameter", "invalid_value", "missing_required_parameter"
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")


def decoded(given: Any, kind: type[T], where: str) -> T:
    """Return `given`, JSON or data, as `kind`. Raises `BadRequestError` that names the field below `where`."""
    try:
        if isinstance(given, msgspec.Raw):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        refused = refusal_of(error, kind)
        path = where if refused.param is None else f"{where}.{refused.param}"
        message = str(refused).replace(refused.param or "the body", path)
        raise BadRequestError(message, path, refused.code) from None


def missing(where: str) -> BadRequestError:
    """Return the refusal of a request without the field at `where`."""
    return BadRequestError(f"{where}: Field required.", where, MISSING)


def refusal_of(error: msgspec.ValidationError, kind: Any) -> BadRequestError:
    """Return what names the field that did not fit in values of type `kind`."""
    said = explained(error, kind)
    matched = _PATH.match(said)
    what, path = (matched["what"], matched["path"] or "") if matched else (said, "")
    if unknown := _UNKNOWN_FIELD.match(what):
        name = _join(path, unknown[1])
        return BadRequestError(f"Unrecognized request argument supplied: {name}.", name, UNKNOWN)
    if lacking := _MISSING_FIELD.match(what):
        name = _join(path, lacking[1])
        return BadRequestError(f"You must provide the parameter {name}.", name, MISSING)
    name = path.replace("[...]", "")
    return BadRequestError(f"Invalid value for {name or 'the body'}: {what}.", name or None, INVALID)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def explained(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the words of an error in values of type `kind`, with what is allowed where that is one of a few,
    or has a form that its type describes."""
    what, at, path = [*re.split(r"( - at (?:`key` in )?`\$)", str(error), maxsplit=1), "", ""][:3]
    is_form = " matching regex " in what
    if not (is_form or what.startswith("Invalid enum value")):
        return str(error)
    names = re.sub(r"\[[^]]*\]|`$", "", path).split(".")[1:] + ["`key`"] * ("`key`" in at)
    allowed = ", ".join(map(str, dict.fromkeys(_allowed(inspect.type_info(kind), names))))
    if is_form and allowed:
        return f"{what.partition(' matching ')[0]} of {allowed}{at}{path}"
    return f"{what}; allowed are {allowed}{at}{path}" if allowed else str(error)


def _allowed(kind: Any, names: list[str]) -> Iterator[object]:
    """Yield the words that a value in the field `names` of a type of msgspec's may be."""
    for one in getattr(kind, "types", ()):
        yield from _allowed(one, names)
    for inner in ("item_type", "value_type", "type"):
        if (one := getattr(kind, inner, None)) is not None:
            yield from _allowed(one, names)
    if names == ["`key`"] and (key := getattr(kind, "key_type", None)) is not None:
        yield from _allowed(key, [])
    elif names:
        fields = [field.type for field in getattr(kind, "fields", ()) if field.encode_name == names[0]]
        for one in fields:
            yield from _allowed(one, names[1:])
    elif (extra := getattr(kind, "extra_json_schema", None)) is not None:
        yield extra["description"]
    elif (values := getattr(kind, "values", None)) is not None:
        yield from values
    elif isinstance(cls := getattr(kind, "cls", None), EnumType):
        yield from (member.value for member in cls)  # type: ignore[var-annotated]
