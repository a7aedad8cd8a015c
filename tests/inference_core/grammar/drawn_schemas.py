"""Schemas drawn at random, most without `$schema`: keywords of all drafts, numbers beyond float64, wrong types."""

from random import Random
from typing import Any

NUMBERS = (0, 5, -3, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 10**16, 2**63, 1e19, 1e20, 10**20, 9.3e18, 1e308)
NAMES = ("score", "b", "items")
PATTERNS = ("^score$", "^(score|b)$", "^(?:b)$", "^s(core)?$", "score", "^$", "", "^x")
DRAFTS = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#")
DRAFTS += ("https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema")
# For any keyword in place of its value.
WRONG: tuple[Any, ...] = (5, "x", None, [], {}, True, [5], {"a": 5})


def drawn_schema(draw: Random, *, sound: bool) -> dict[str, Any]:
    """One schema; a `sound` one is of its dialect, and has neither references nor `oneOf`."""
    schema = _schema(draw, 3, sound)
    if draw.random() < 0.2:
        schema["$schema"] = draw.choice(DRAFTS)
    if not sound and draw.random() < 0.2:
        schema["$id"] = draw.choice((5, "x", "http://127.0.0.1/a.json", "#a"))
    if draw.random() < 0.3:
        schema["definitions"] = {"part": _schema(draw, 1, sound)}
    return schema


def _schema(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    kinds = (_number, _text, _array, _object, _any, *(() if sound else (_reference,)))
    schema = draw.choice(kinds if level else kinds[:2])(draw, level, sound)
    return {key: value if sound or draw.random() < 0.95 else draw.choice(WRONG) for key, value in schema.items()}


def _some(draw: Random, **values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if draw.random() < 0.5}


def _number(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    low, high = sorted(draw.choices((*NUMBERS, *(-number for number in NUMBERS)), k=2))
    bounds = _some(draw, minimum=low, maximum=high, exclusiveMinimum=low, exclusiveMaximum=high)
    if draw.random() < 0.2:
        bounds |= {key: True for key in ("exclusiveMinimum", "exclusiveMaximum") if key in bounds}
    return {"type": draw.choice(("integer", "number")), **bounds}


def _text(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    return {"type": "string", **_some(draw, minLength=1, maxLength=3, pattern="^[a-c]*$")}


def _array(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    parts = [_schema(draw, level - 1, sound) for _ in range(2)]
    # In the form of pydantic 1's tuples, of 2020-12, and with both.
    items = draw.choice(({"items": parts}, {"prefixItems": parts}, {"prefixItems": parts, "items": parts[0]}))
    more = {"additionalItems": draw.choice((False, True, parts[0]))}
    return {"type": "array", **items, **_some(draw, minItems=2, maxItems=2, **more, contains=parts[0])}


def _object(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    properties = {name: _schema(draw, level - 1, sound) for name in draw.sample(NAMES, draw.randrange(3))}
    patterns = {pattern: _schema(draw, 0, sound) for pattern in draw.sample(PATTERNS, draw.randrange(3))}
    more = {"dependencies": {"score": draw.choice((["b"], {"required": ["b"]}))}, "minProperties": 1}
    more |= {"additionalProperties": draw.choice((False, True, {"type": "null"})), "required": list(properties)[:1]}
    return {"type": "object", "properties": properties, **_some(draw, patternProperties=patterns, **more)}


def _any(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    keyword = draw.choice(("anyOf", "allOf") if sound else ("anyOf", "allOf", "oneOf"))
    return {keyword: [_schema(draw, level - 1, sound) for _ in range(2)]}


def _reference(draw: Random, level: int, sound: bool) -> dict[str, Any]:
    target = draw.choice(("#/definitions/part", "#", "a.json", "#a", "http://127.0.0.1/a.json#/definitions/part"))
    return {"$ref": target, **_some(draw, **{"$id": "http://127.0.0.1/b.json", "maxItems": 2})}
