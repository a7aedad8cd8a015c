"""Hostile bodies: mutations of valid ones, damaged as a whole or in the values of a JSON schema."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.fuzz.hostile_values import WHOLE
from tests.fuzz.mutations import json_mutated


def hostile(valid: Mapping[str, Any], draw: Random) -> bytes:
    """A body as bytes: one to three parts of it changed, or damaged as a whole."""
    kind = draw.random()
    if kind < 0.04:
        return draw.choice(WHOLE)
    encoded = json_mutated(json.dumps(valid).encode(), draw)
    if kind < 0.08:
        damaged = bytearray(encoded)
        for _ in range(draw.randint(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        return bytes(damaged)
    if kind < 0.1:
        return encoded[: draw.randrange(len(encoded))]
    if kind < 0.12:
        return encoded.decode().encode(draw.choice(["utf-16", "utf-32", "utf-8-sig"]))
    return encoded


def instance_of(schema: Mapping[str, Any], document: Mapping[str, Any], draw: Random, depth: int = 0) -> Any:
    """A value that the JSON schema of an OpenAPI document admits, apart from patterns."""
    if "$ref" in schema:
        found: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return instance_of(found, document, draw, depth)
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return instance_of(draw.choice(schema[several]), document, draw, depth)
    if schema.get("enum"):
        return draw.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    kind = draw.choice(kind) if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        required = set(schema.get("required", ()))
        made = {}
        for name, of in schema.get("properties", {}).items():
            if name in required or (depth < 4 and draw.random() < 0.25):
                made[name] = instance_of(of, document, draw, depth + 1)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict) and depth < 4:
            made["x"] = instance_of(extra, document, draw, depth + 1)
        return made
    if kind == "array":
        least = schema.get("minItems", 0)
        count = least if depth > 4 else max(least, draw.randint(0, 2))
        return [instance_of(schema.get("items", {}), document, draw, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return draw.choice([lowest, lowest + 1, schema.get("maximum", 100)])
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "string":
        return draw.choice(["x" * max(1, schema.get("minLength", 1)), "auto", "tier-1", "Hello there"])
    return draw.choice([None, 1, "x", [], {}])
