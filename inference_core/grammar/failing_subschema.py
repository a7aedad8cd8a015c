"""Finds the smallest part of a JSON schema that cannot be compiled, so that the error can name it."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from inference_core.grammar.schema_rewriting import LISTS, MAPPINGS, ONE

_MOST_TRIALS = 500
# The identifier of a whole schema that has none: references in its parts are relative to it.
_WHOLE = "aio:whole"


def failing_subschema(schema: Any, error_of: Callable[[Any], str | None]) -> tuple[str, str | None]:
    """Return the path of the smallest failing part of `schema`, such as `.properties.age`, and its `error_of`.

    Descends into parts that fail for the same reason on their own; ("", the schema's error) if none does. A part is
    tried where it stands, so that its references lead to what they lead to in the whole.
    """
    path, part, pointer, reason = "", schema, "", error_of(schema)
    if not isinstance(schema, dict):
        return path, reason
    key = "id" if "id" in schema and "$id" not in schema else "$id"
    given = schema.get(key)
    name = given.removesuffix("#") if isinstance(given, str) and ":" in given else _WHOLE
    # Identifiers are found where the draft has schemas.
    definitions = "$defs" if "/20" in str(schema.get("$schema", "/20")) else "definitions"
    kind = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    whole = {**schema, key: name}
    trials, going = _MOST_TRIALS, True
    while going:
        going = False
        for step, place, inner in _parts(part):
            if trials == 0:
                break
            trials -= 1
            error = error_of({**kind, definitions: {"whole": whole}, "$ref": f"{name}#{pointer}{place}"})
            if _cause(error) == _cause(reason) is not None:
                path, part, pointer, going = path + step, inner, pointer + place, True
                break
    return path, reason


def _cause(error: str | None) -> str | None:
    return error and error.partition("while processing")[0].strip()


def _parts(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """The schemas directly in a schema: the step of the path, the step of a reference, the part."""
    if not isinstance(schema, dict):
        return
    for key in MAPPINGS:
        if isinstance(schema.get(key), dict):
            for name, inner in schema[key].items():
                if isinstance(inner, dict):
                    yield f".{key}.{name}", f"/{key}/{_escaped(name)}", inner
    for key in LISTS:
        if isinstance(schema.get(key), list):
            for place, inner in enumerate(schema[key]):
                if isinstance(inner, dict):
                    yield f".{key}[{place}]", f"/{key}/{place}", inner
    yield from ((f".{key}", f"/{key}", schema[key]) for key in ONE if isinstance(schema.get(key), dict))


def _escaped(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~!$&'()*+,;=:@")
