"""Schemas as the library gets them: an answer ends where its schema holds, and what cannot be followed is refused."""

import json
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError
from inference_core.grammar.compiler import GrammarCompiler
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.protocol import Grammar
from tests.inference_core.grammar.byte_vocabulary import EOS, ByteVocabulary, byte_compiler

COMPILER: GrammarCompiler = byte_compiler()
BIG = 1234567890123456789
BAD = {"uniqueItems": True}


def allows(schema: Any, answer: str) -> bool:
    """Whether a text may be written to its end."""
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema)))()
    return follows(matcher, answer)


def follows(matcher: GrammarMatcher, answer: str) -> bool:
    for token in (*answer.encode(), EOS):
        matcher.ask_masks(())
        forced = matcher.forced_tokens()
        if not forced and not matcher.masks()[0][token // 8] >> token % 8 & 1:
            return False
        matcher.accept(token)
        matcher.forced_tokens()
        if matcher.failure is not None:
            return False
    return True


@pytest.mark.parametrize(
    ("schema", "allowed", "excluded"),
    [
        # A class that excludes `"` or `\\` excludes their escapes.
        ({"type": "string", "pattern": '^[^,"]+$'}, [r'"a\\b"', r'"a\nb"'], [r'"a\"b"']),
        ({"type": "string", "pattern": r'^[^/\\:*?"<>|]+$'}, ['"name.txt"'], [r'"a\\b"', r'"a\"b"']),
        ({"type": "string", "pattern": r"^[^[\]]+$"}, ['"ab"', r'"\""'], ['"a[b"', '"a]b"']),
        ({"type": "string", "pattern": r"^[a&&b]$"}, ['"&"', '"a"'], ['"c"']),
        ({"type": "string", "pattern": r"^[\x00-!]$"}, [r'"\n"', '"!"'], [r'"\""', r'"\\"']),
        ({"type": "string", "pattern": r"^\S.$"}, ['"ab"', '"\u0085b"'], ['"\ufeffb"', '"a\u2028"', r'"a\n"']),
        ({"type": "string", "pattern": r"^[\s]$"}, ['"\ufeff"'], ['"a"']),
        ({"type": "string", "pattern": r"^(?<first>a)$"}, ['"a"'], ['"b"']),
        ({"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)"}, ['"a b"', '""'], ['"a "']),
        ({"type": "string", "format": "email"},
         ['"a.b@c"', json.dumps("a" * 64 + "@b.c")], [json.dumps("a" * 65 + "@b.c"), '"a@b@c"']),
        ({"patternProperties": {'^[^"]+$': {}}, "additionalProperties": False}, ['{"ab": 1}'], [r'{"\"": 1}']),
        # Dates of the calendar, times of clocks, hosts of the DNS.
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"type": "string", "format": "time"}, ['"23:59:59Z"'], ['"23:59:60Z"']),
        ({"type": "string", "format": "date-time"}, ['"2024-02-29T00:00:00Z"'], ['"2023-02-29T00:00:00Z"']),
        ({"type": "string", "format": "hostname"}, ['"ab.example"'], [json.dumps("a" * 64), '"xn--x"', '"ab-"']),
        ({"type": "string", "format": "uri-template"}, ['"/a/{b:3,c*}{?d}"', '"é"'], ['"{,+v}"', '"a b"', '"}"']),
        ({"type": "string", "format": "date", "pattern": "^20"}, ['"2024-01-01"'], ['"1999-01-01"']),
        # Bounds below 2^53.
        ({"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1}, ["0", "-9"], [str(2**53)]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": False}, ["3"], ["2"]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
        ({"type": "number", "maximum": 3, "exclusiveMaximum": True}, ["2.5"], ["3"]),
        ({"type": "integer", "exclusiveMinimum": True}, ["-4"], ['"a"']),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, ["[1, 1]"], ['["a"]']),
        # A part with a dialect of its own is validated as exactly.
        ({"properties": {"n": {"$schema": "http://json-schema.org/draft-04/schema#", "oneOf": [
            {"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}}},
         ['{"n": "::"}'], ['{"n": "x"}']),
        # A format that says nothing.
        ({"type": "string", "format": "color-hex"}, ['"any"'], ["1"]),
        # A reference to a place that no keyword of schemas leads to.
        ({"properties": {"a": {"$ref": "#/components/x"}}, "components": {"x": {"type": "null"}}},
         ['{"a": null}'], ['{"a": 1}']),
        # Branches of which one holds: validated at the end.
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"]),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
         ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
        ({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}}},
         ['{"kind": "cat"}', '{"kind": "wolf"}'], ['{"kind": "cow"}']),
        ({"oneOf": [{"type": "object", "properties": {"kind": {"const": c}}} for c in "ab"]},
         ['{"kind": "a"}', '{"kind": "b"}'], ["{}"]),
        ({"type": "object", "oneOf": [{"properties": {c: {}}, "additionalProperties": False} for c in "ab"]},
         ['{"a": 1}', '{"b": 1}'], ["{}"]),
        ({"oneOf": [{"properties": {"a": {"type": "array"}}}, {"unknown": 1}]}, ['{"a": 1}'], ['{"a": []}', "1", "{}"]),
        ({"type": "object", "oneOf": [{"properties": {c: {"type": "string"}}} for c in "ab"]},
         ['{"a": "x", "b": 1}', '{"a": 1}'], ["{}", '{"a": "x", "b": "x"}']),
        ({"oneOf": [{"type": "array", "items": {"type": c}} for c in ("number", "array")]},
         ["[1]", "[[1]]"], ["[]", "[1, []]"]),
        ({"oneOf": [{}, {"type": "array", "items": {"type": "null"}}]}, ["1", "{}"], ["[]", "[null]"]),
        ({"oneOf": [{"instanceof": "RegExp"}, {"process": "regexp", "type": "string"}]}, ["1"], ['"a"']),
        ({"oneOf": [{}, {"type": "null"}]}, ["1", "{}"], ["null"]),
        ({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 7}]}, ["1", "9"], ["6"]),
        ({"type": "object", "properties": {"n": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}},
         ['{"n": 1.5}'], ['{"n": 1}']),
    ],
)  # fmt: skip
def test_an_answer_may_end_where_its_schema_holds(schema: Any, allowed: list[str], excluded: list[str]) -> None:
    assert [text for text in allowed if not allows(schema, text)] == []
    assert [text for text in excluded if allows(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"n": {"const": BIG}}}, rf"schema\.properties\.n .*const: {BIG} "),
        ({"items": {"enum": [BIG]}}, rf"schema\.items .*enum: {BIG} "),
        ({"type": "integer", "minimum": 2**64}, r"minimum: 18446744073709551616 .* less than 2\^53"),
        ({"properties": {"n": {"maximum": 2**63 - 1}}}, r"schema\.properties\.n .*maximum: 9223372036854775807 "),
        ({"type": "number", "exclusiveMaximum": -1e20}, r"exclusiveMaximum: -1e\+20 "),
        ({"type": "integer", "exclusiveMinimum": 2**53}, "exclusiveMinimum: 9007199254740992 "),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": False},
            "min/maxProperties only supported",
        ),
        *(
            ({"properties": {"a": {"propertyNames": names}}}, r"schema\.properties\.a .*propertyNames")
            for names in ({"enum": ["x", "y"]}, {"const": "b"}, {"pattern": "^x_"}, {"minLength": 2, "maxLength": 3})
        ),
        ({"properties": {"a": {"not": {"type": "string"}}}}, r"schema\.properties\.a .*not"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, 'schema .*"if"'),
        ({"type": "string", "pattern": "^(?!-)[a-z-]+$"}, "look-around"),
        ({"properties": {"a": {"dependencies": {"b": ["c"]}}}}, r"schema\.properties\.a .*dependencies"),
        ({"dependentRequired": {"b": ["c"]}}, "dependentRequired"),
        ({"prefixItems": [{"type": "null"}], "additionalItems": True}, "additionalItems says nothing"),
        (
            {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "allOf": [{"maxLength": 5000}]},
            "too many expressions",
        ),
        ({"patternProperties": {"^a": {"type": "null"}, "z$": {"type": "string"}}}, "not disjoint"),
        ({"properties": {"off": False, "list": BAD}}, r"schema\.properties\.list .*uniqueItems"),
        ({"properties": {"z": {"$ref": "#/properties/a"}, "a": {"items": BAD}}}, r"schema\.properties\.a\.items "),
        ({"$id": "https://a.example/b.json", "properties": {"a/b": BAD}}, r"schema\.properties\.a/b "),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"x": {"not": {"multipleOf": 2}}, "unused": BAD},
                "properties": {"y": {"$ref": "#/definitions/x"}},
            },
            r'schema\.definitions\.x .*"not"',
        ),
    ],
)
def test_a_refusal_names_the_place_and_the_reason(schema: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema), param="schema"))


def test_a_refusal_of_a_schema_in_a_lark_grammar_names_the_field_that_gave_it() -> None:
    schema = json.dumps({"properties": {"n": {"maximum": 2**64}}})
    grammar = Grammar(kind="lark", text=f"start: %json {schema}", schemas=(("tools[0].parameters", schema),))
    with pytest.raises(
        InvalidRequestError, match=r"^tools\[0\]\.parameters\.properties\.n .*maximum: 1844674407370955"
    ) as e:
        COMPILER.compile(grammar)
    assert e.value.param == "tools[0].parameters"


def test_schemas_in_a_lark_grammar_are_rewritten_but_not_its_texts() -> None:
    lark = 'start: "%json {" one\none: %json {"type": "string", "pattern": "^[^\\"]$"}'
    make = COMPILER.compile(Grammar(kind="lark", text=lark))
    assert follows(make(), '%json {"a"')
    assert not follows(make(), r'%json {"\""')


def test_an_answer_that_could_only_end_invalid_fails_naming_the_keyword() -> None:
    schema = {"type": "object", "properties": {"n": {"oneOf": [{"minimum": 0}, {"maximum": 9}]}}, "required": ["n"]}
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema)))()
    assert not follows(matcher, '{"n": 5}')
    assert "$.n does not hold for the keyword 'oneOf'" in str(matcher.failure)


def test_an_end_after_drafts_is_validated_with_the_drafts() -> None:
    schema = {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 7}]}
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema)))()
    matcher.ask_masks(list(b"64"))
    may_end = [bool(mask[EOS // 8] >> EOS % 8 & 1) for mask in matcher.masks()]
    assert may_end == [False, False, True]
    matcher.ask_masks(list(b"4"))
    assert bool(matcher.masks()[1][EOS // 8] >> EOS % 8 & 1)


def test_a_draft_that_could_only_end_invalid_fails_nothing() -> None:
    schema = {"type": "object", "properties": {"n": {"oneOf": [{"minimum": 0}, {"maximum": 9}]}}, "required": ["n"]}
    matcher = COMPILER.compile(Grammar(kind="json_schema", text=json.dumps(schema)))()
    matcher.ask_masks(ByteVocabulary().encode_continued('{"n": 5}'))
    assert not any(matcher.masks()[-1])
    assert matcher.failure is None
    assert follows(matcher, '{"n": 52}')
