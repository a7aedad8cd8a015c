"""What a value may be, for the message that refuses it: found by its type once it was refused."""

import re
from collections.abc import Iterator
from enum import EnumType
from typing import Any

import msgspec
from msgspec import inspect


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
