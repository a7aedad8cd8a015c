"""Grammars that cost more than they look, or break the library that compiles them."""

import json
from typing import Any

Schema = dict[str, Any]


def reference_chain(length: int) -> Schema:
    """An object whose property is an object whose property is …, each a definition of its own."""
    defined: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        for i in range(length)
    }
    return {"$defs": defined | {f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(key: str, depth: int) -> str:
    """A schema within a schema, as text: Python's own encoder ends before some of these depths."""
    opening, closing = {
        "anyOf": ('{"anyOf":[', "]}"),
        "allOf": ('{"allOf":[', "]}"),
        "items": ('{"type":"array","items":', "}"),
    }[key]
    return opening * depth + '{"type":"string"}' + closing * depth


def lark_chain(length: int) -> str:
    return "start: r0\n" + "".join(f'r{i}: r{i + 1} "x"\n' for i in range(length)) + f'r{length}: "a"\n'


def gbnf_chain(length: int) -> str:
    return "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "x"\n' for i in range(length)) + f'r{length} ::= "a"\n'


def alternatives(count: int) -> str:
    return "start: " + " | ".join(f'"w{i}"' for i in range(count))


def intersection(count: int) -> Schema:
    """Its automaton has more states than any machine has memory for."""
    return {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}$"} for i in range(count)]}


def many_properties(count: int) -> Schema:
    """Thousands take seconds to compile."""
    return {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(count)}}


LATE = 'start: ("x" | "y") A{1000}\nA: "ab"{5000}'
"""Nothing is wrong with it until its first letter is drawn; ten megabytes are forced then."""


def as_text(schema: Schema) -> str:
    return json.dumps(schema)
