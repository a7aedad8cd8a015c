"""Rewrites JSON schemas for the grammar library, which reads some keywords inexactly and refuses others.

The rewritten schema allows what the original allows, or a part of it, but for `oneOf` whose branches are not
exclusive: finished answers are therefore also validated. Every part stays in its place, so that references to it hold.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard
from urllib.parse import unquote

from inference_core.grammar.exclusive_branches import TYPES, Resolve, kind_of, mapping_in, narrowed, types_of
from inference_core.grammar.patterns import (
    FORMATS,
    PARTS,
    library_pattern,
    linear_patterns,
    most_repeats,
    without_lookaheads,
)

# Keywords whose value is a schema, a list of schemas, or a mapping of names to schemas.
ONE = ("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
MAPPINGS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
# Numbers that the library keeps exactly, bounds below the first: it computes in float64.
_EXACT = 1 << 53
_MOST = (1 << 63) - 1024
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
# Of a counted group of a pattern times the longest length. The library takes a hundred megabytes for more, or fails in
# the middle of an answer ("too many expressions constructed").
_MOST_STATES = 10_000
# Keywords that exclude nothing. More dependencies take too long.
_SAYS_NOTHING = frozenset(("title", "description", "default", "examples", "$comment", "$id"))
_MOST_DEPENDENCIES = 4
_MOST_REFERENCES = 6
# Values and characters of an `enum` that is excluded.
_LONGEST_ENUM = 300
# What a bound excludes: of a type, by which keyword, how far from the bound.
_OPPOSITES = {
    "minimum": ("number", "exclusiveMaximum", 0), "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0), "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1), "maxProperties": ("object", "minProperties", 1),
}  # fmt: skip
_PATTERNS = FORMATS | PARTS


class InexpressibleError(ValueError):
    """A value that no grammar of the library has. The message names it; `path`: its schema, as `.properties.age`."""

    path = ""


def for_library(schema: Any) -> Any:
    """Rewrite a parsed schema. Raises `InexpressibleError`, `RecursionError`."""
    if isinstance(schema, dict) and "/draft-0" in str(schema.get("$schema")):
        schema = {key: _without_ids(key, part) for key, part in schema.items()}
    resolve = _resolver(schema)
    for reference in _references(schema):
        if not _is_reached(_steps(reference)) and resolve(reference) is not None:
            raise InexpressibleError(f"$ref: {_named(reference)} is no place for schemas; move it to $defs")
    return _rewritten(schema, resolve)


def _without_ids(key: str, part: Any) -> Any:
    """The value of a keyword without identifiers next to references, which name nothing before draft 2019-09."""
    if key in ("const", "enum", "default", "examples"):
        return part
    if isinstance(part, list):
        return [_without_ids("", inner) for inner in part]
    if not isinstance(part, dict):
        return part
    dropped = ("$id", "id") if isinstance(part.get("$ref"), str) else ()
    return {name: _without_ids(name, inner) for name, inner in part.items() if name not in dropped}


def _references(part: Any) -> Iterator[str]:
    """The references of a schema to its own parts, wherever they are."""
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            yield reference
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(inner)


def _steps(reference: str) -> list[str]:
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]


def _is_reached(steps: Sequence[str]) -> bool:
    """Whether only keywords of schemas lead to a part, so that it is rewritten with its root."""
    left = iter(steps)
    return all(step in ONE or ((step in MAPPINGS or step in LISTS) and next(left, None) is not None) for step in left)


def _rewritten(schema: Any, resolve: Resolve) -> Any:
    if not isinstance(schema, dict):
        return schema
    schema = _positive(schema, resolve)
    rewritten = {key: _inner(key, value, resolve) for key, value in schema.items()}
    for step in (_exact_values, _patterns, _annotations, _exact_bounds):
        step(rewritten)
    _dependent(rewritten, resolve)
    _exclusive(schema, rewritten, resolve)
    return rewritten


def _resolver(root: Any) -> Resolve:
    def resolve(reference: str) -> Any:
        part = root
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        for name in _steps(reference):
            part = part.get(name) if isinstance(part, dict) else None
        return part

    return resolve


def _inner(key: str, value: Any, resolve: Resolve) -> Any:
    if key in MAPPINGS and isinstance(value, dict):
        return {name: _at(f".{key}.{name}", part, resolve) for name, part in value.items()}
    if key in LISTS and isinstance(value, list):
        return [_at(f".{key}[{place}]", part, resolve) for place, part in enumerate(value)]
    return _at(f".{key}", value, resolve) if key in ONE else value


def _at(step: str, part: Any, resolve: Resolve) -> Any:
    if isinstance(part, dict) and part.get("not") in ({}, True):
        return False
    try:
        return _rewritten(part, resolve)
    except InexpressibleError as error:
        error.path = step + error.path
        raise


def _patterns(schema: dict[str, Any]) -> None:
    """Write patterns, and formats as patterns, in the library's syntax."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        schema["pattern"], *others = map(library_pattern, without_lookaheads(pattern))
        for other in others:
            _also(schema, {"pattern": other})
        longest = schema.get("maxLength")
        if isinstance(longest, int) and longest * most_repeats(pattern) > _MOST_STATES:
            del schema["maxLength"]  # left to the validation
    patterns, properties = schema.get("patternProperties"), mapping_in(schema, "properties")
    if isinstance(patterns, dict):
        schema["patternProperties"] = {}
        for key, value in patterns.items():
            # Of a pattern that leaves no other name the library would begin one, and could not end it.
            known = linear_patterns().only_among(key, properties) if properties else None
            if known is None:
                schema["patternProperties"][library_pattern(key)] = value
            else:
                properties = {**properties, **{name: {"allOf": [properties[name], value]} for name in known}}
                schema["properties"] = properties
    name = schema.get("format")
    if isinstance(name, str):
        del schema["format"]
        if name in _PATTERNS and _allows(schema, "string"):
            whole = {"pattern": library_pattern(f"^(?:{_PATTERNS[name]})$")}
            if "pattern" in schema:
                _also(schema, whole)
            else:
                schema |= whole


def _annotations(schema: dict[str, Any]) -> None:
    """Drop keywords that say nothing."""
    if not isinstance(schema.get("items"), list):
        schema.pop("additionalItems", None)  # for which the library forgets `prefixItems`
    if schema.get("uniqueItems") is False or not _allows(schema, "array"):
        schema.pop("uniqueItems", None)
    if "uniqueItems" in schema and isinstance(schema.get("maxItems"), int) and schema["maxItems"] <= 1:
        del schema["uniqueItems"]
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        if schema.get(key) == {}:
            del schema[key]
    if schema.get("propertyNames") in (True, {}, {"type": "string"}):
        del schema["propertyNames"]
    if "if" not in schema or not ("then" in schema or "else" in schema):
        for key in ("if", "then", "else"):
            schema.pop(key, None)


def _exact_values(schema: dict[str, Any]) -> None:
    """Keep the values of `const` and `enum` that the library writes as they are."""
    if "const" in schema and not _is_exact(schema["const"]):
        raise InexpressibleError(f"const: {_named(schema['const'])} has a number that grammars cannot hold exactly")
    values = schema.get("enum")
    if isinstance(values, list) and values:
        exact = [value for value in values if _is_exact(value)]
        if not exact:
            raise InexpressibleError(f"enum: {_named(values[0])} has a number that grammars cannot hold exactly")
        schema["enum"] = exact


def _exact_bounds(schema: dict[str, Any]) -> None:
    """Refuse bounds that float64 lacks; draft 4's flags become bounds."""
    for inclusive, exclusive in (_LOWER, _UPPER):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and inclusive in schema:
            schema[exclusive] = schema.pop(inclusive)
    for key in (*_LOWER, *_UPPER):
        bound = schema.get(key)
        if _is_number(bound) and abs(bound) >= _EXACT:
            raise InexpressibleError(
                f"{key}: {_named(bound)} is no bound that grammars hold exactly; use less than 2^53"
            )


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dependent(schema: dict[str, Any], resolve: Resolve) -> None:
    """Replace dependencies: the property is missing, or what depends on it holds."""
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        given = schema.get(key)
        if not isinstance(given, dict) or not 0 < len(given) <= _MOST_DEPENDENCIES:
            continue
        if not all(isinstance(held, list | dict | bool) for held in given.values()):
            continue
        for name, held in given.items():
            part = {"required": held} if isinstance(held, list) else held
            if key == "dependencies" and isinstance(held, dict):
                part = _rewritten(held, resolve)
            _also(schema, {"anyOf": [{"properties": {name: False}}, part]})
        del schema[key]


def _positive(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """The schema without `not` and `if`, where a schema for what they leave is known: of `if` two branches that exclude
    each other."""
    schema = dict(schema)
    if (left := _negation(schema.get("not"), resolve)) is not None:
        _also(schema, left)
        del schema["not"]
    conditional = "then" in schema or "else" in schema
    if conditional and (left := _negation(schema.get("if"), resolve)) is not None:
        branches = [[schema.pop("if"), schema.pop("then", {})], [left, schema.pop("else", {})]]
        _also(schema, {"anyOf": [{"allOf": branch} for branch in branches]})
    return schema


def _negation(schema: Any, resolve: Resolve, level: int = 0) -> Any:
    """A schema for what `schema` does not allow, exactly; None if none is known."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict) or level > _MOST_REFERENCES:
        return None

    def negated(part: Any) -> Any:
        return _negation(part, resolve, level + 1)

    said = {key: value for key, value in schema.items() if key not in _SAYS_NOTHING}
    if said.keys() == {"$ref"}:
        return negated(resolve(said["$ref"]))
    return _any_of([_violated(key, value, negated) for key, value in said.items()])


def _any_of(parts: list[Any]) -> Any:
    """A schema for what any of `parts` allows; None if one of them is not known."""
    if None in parts:
        return None
    parts = [part for part in parts if part is not False]
    return {"anyOf": parts} if len(parts) > 1 else parts[0] if parts else False


def _violated(key: str, value: Any, negated: Callable[[Any], Any]) -> Any:
    """A schema for what a keyword excludes; None if none is known."""
    match key, value:
        case "type", str() | list():
            names = frozenset(name for name in ([value] if isinstance(value, str) else value) if isinstance(name, str))
            return ({"type": sorted(TYPES - names)} if names < TYPES else False) if names <= TYPES else None
        case "required", list():
            return _any_of([{"type": "object", "properties": {n: False}} for n in value if isinstance(n, str)])
        case "properties", dict():
            left = {name: negated(part) for name, part in value.items()}
            wrong = [(name, part) for name, part in left.items() if part is not False]
            parts = [{"type": "object", "required": [name], "properties": {name: part}} for name, part in wrong]
            return None if None in left.values() else _any_of(parts)
        case ("enum", list()) | ("const", _):
            return _other_values(value if key == "enum" else [value])
        case "not", _:
            return value
        case "allOf", list():
            return _any_of([negated(part) for part in value])
        case "anyOf", list():
            parts = [negated(part) for part in value]
            return None if None in parts else {"allOf": parts}
        case _ if key in _OPPOSITES and isinstance(value, int | float) and not isinstance(value, bool):
            kind, opposite, step = _OPPOSITES[key]
            return {"type": kind, opposite: value + step} if value + step >= 0 or kind == "number" else False
    return None


def _other_values(values: list[Any]) -> Any:
    """A schema for all but `values`; None for arrays, objects and long texts."""
    kinds = {kind_of(value) for value in values}
    texts = {value for value in values if isinstance(value, str)}
    if kinds & {"array", "object"} or len(values) + sum(map(len, texts)) > _LONGEST_ENUM:
        return None
    bounds = sorted({value for value in values if kind_of(value) == "number"})
    between = zip((None, *bounds), (*bounds, None), strict=True)
    parts: list[Any] = [
        {"type": "number"} | {k: v for k, v in (("exclusiveMinimum", low), ("exclusiveMaximum", high)) if v is not None}
        for low, high in (between if bounds else ())
    ]
    if texts:
        parts.append({"type": "string", "pattern": _other_texts(texts)})
    if "boolean" in kinds:
        parts += [{"const": known} for known in (False, True) if not any(value is known for value in values)]
    return _any_of([{"type": sorted(TYPES - kinds)}, *parts] if kinds < TYPES else parts)


def _other_texts(texts: set[str]) -> str:
    """A pattern for all but `texts`: each of their prefixes, followed by a character with which none of them goes on;
    or alone, where it is none of them."""
    prefixes = sorted({text[:end] for text in texts for end in range(len(text) + 1)})
    options = []
    for prefix in prefixes:
        next_characters = "".join(re.escape(text[-1]) for text in prefixes if text and text[:-1] == prefix)
        other = rf"[^{next_characters}][\s\S]*" if next_characters else r"[\s\S]+"
        options.append(re.escape(prefix) + (other if prefix in texts else f"(?:{other})?"))
    return f"^(?:{'|'.join(options)})$"


def _exclusive(schema: dict[str, Any], rewritten: dict[str, Any], resolve: Resolve) -> None:
    """Narrow the branches of `oneOf`, which the library then reads as `anyOf`."""
    branches = rewritten.get("oneOf")
    if isinstance(branches, list) and branches:
        rewritten["oneOf"] = narrowed(branches, types_of(schema), resolve)


def _also(schema: dict[str, Any], part: dict[str, Any]) -> None:
    others = schema.get("allOf")
    schema["allOf"] = [*(others if isinstance(others, list) else ()), part]


def _allows(schema: Mapping[str, Any], kind: str) -> bool:
    kinds = schema.get("type", kind)
    return kind in (kinds if isinstance(kinds, list) else [kinds])


def _is_exact(value: Any) -> bool:
    return all(
        isinstance(n, bool) or not isinstance(n, int) or (abs(n) <= _MOST and int(float(n)) == n)
        for n in _leaves(value)
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _named(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
