"""JSON that is hostile to parsers and to what reads the parsed values: mutations of valid bodies, as bytes."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

RAW = (
    "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" * 400, "-" + "9" * 5000, "-0.0", "1e-400", "1e308", "-1",
    "0", "1", "2",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "2147483648",
    "4294967296",
    "1.7976931348623157e308", "5e-324", "0.1" + "0" * 3000 + "1", "01", "+1", ".5", "1.", "0x10", "1_000", "1e", "--1",
    "null", "true", "false", "[]", "{}", '""', '" "', '"x"', '"-1"', '"1e400"', '"NaN"', '"null"', '[null]', '[[]]',
    "[{}]", '{"":0}',
    '"\\ud800"', '"\\udc00\\ud800"', '"a\\ud83d"', '"\\u0000"', '"a\\u0000b"', '"\\uffff\\ufffe"', '"\\u202e\\u2066"',
    '"\\u001b[31m"',
    '"\\r\\nx: y"', '"%s%n%x"', '"{{7*7}}"', '"{% for x in range(10**9) %}{% endfor %}"',
    '"${jndi:ldap://127.0.0.1/a}"',
    '"../../../../etc/passwd"', '"file:///etc/passwd"', '"\' OR 1=1 --"', '"; DROP TABLE requests"',
    '"<script>alert(1)</script>"',
    '"=1+1"', '"<|im_start|>system"', '"auto"', '"tier-1"', '"gpt-4o"', '"user"', '"system"', '"' + "A" * 70_000 + '"',
    '"' + "\\u0000" * 5000 + '"', "[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000, '{"a":' * 900 + "1" + "}" * 900,
    '{"a":' * 50_000 + "1" + "}" * 50_000, "[" + ",".join(["0"] * 30_000) + "]", "[" + ",".join(['""'] * 10_000) + "]",
    "{" + ",".join(f'"k{place}":0' for place in range(5000)) + "}", '{"a":1,"a":2}', '{"__proto__":{"admin":true}}',
    '{"$ref":"#"}', '{"type":"object","properties":{"a":{"$ref":"#"}}}',
    '{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}',
    '"' + "é" * 9000 + '"', '"' + "\\ud83d\\ude00" * 3000 + '"', "1e99999999999", '"1970-01-01T00:00:00Z"',
    '"9999-99-99"',
)  # fmt: skip
WHOLE = (
    b"", b" ", b"null", b"[]", b"{}", b'""', b"0", b"\xef\xbb\xbf{}", b"{", b"}", b'{"', b'{"a"', b'{"a":', b'{"a":}',
    b"{,}",
    b"[1,]", b'{"a":1,}', b"// x\n{}", b"/**/{}", b"{'a':1}", b"\xff\xfe{\x00}\x00", b"\x00", b"\x1f\x8b\x08\x00",
    b"\xff" * 999,
    b'{"a":"\xff"}', b'{"a":"\xc0\xaf"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\x01"}', b"{}" * 2, b"{}\x00", b"a=b&c=d",
    b"[" * 200_000,
    b'{"a":' * 100_000, b'"' + b"\\u0041" * 50_000 + b'"', b"1" * 100_000, b'{"a":' + b"9" * 100_000 + b"}",
)  # fmt: skip
_MARK = "@@raw %d@@"


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every part of a value is."""
    found = [path]
    if isinstance(value, dict):
        for name, part in value.items():
            found += _paths(part, (*path, name))
    elif isinstance(value, list):
        for place, part in enumerate(value[:20]):
            found += _paths(part, (*path, place))
    return found


def mutated(valid: Mapping[str, Any], draw: Random) -> bytes:
    """A body as bytes: one to three parts of it replaced, removed, repeated or renamed, or damaged as a whole."""
    kind = draw.random()
    if kind < 0.04:
        return draw.choice(WHOLE)
    body = json.loads(json.dumps(valid))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        path = draw.choice(_paths(body)[1:] or [()])
        if not path:
            continue
        parent = body
        for step in path[:-1]:
            parent = parent[step]
        change = draw.random()
        if change < 0.7:
            parent[path[-1]] = _MARK % draw.randrange(len(RAW))
        elif change < 0.8:
            del parent[path[-1]]
        elif isinstance(parent, dict):
            name = draw.choice(["", "a" * 5000, "__class__", "\x00", "\ud800", "ä", "constructor", "x", f"{path[-1]} "])
            parent[name] = _MARK % draw.randrange(len(RAW))
        else:
            parent.extend([parent[path[-1]]] * draw.choice([1, 100, 3000]))
    text = json.dumps(body)
    for place, raw in enumerate(RAW):
        text = text.replace(f'"{_MARK % place}"', raw)
    encoded = text.encode()
    if kind < 0.08:
        damaged = bytearray(encoded)
        for _ in range(draw.randint(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        return bytes(damaged)
    if kind < 0.1:
        return encoded[: draw.randrange(len(encoded))]
    if kind < 0.12:
        return text.encode(draw.choice(["utf-16", "utf-32", "utf-8-sig"]))
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
