"""Grammars larger than any real one are refused by their field, with the number allowed, before they are compiled."""

import json
import time
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import InvalidRequestError
from inference_core.grammar.limits import (
    MAX_ALTERNATIVES,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_RULES,
    check_bounds,
    check_length,
)
from inference_core.protocol import Grammar, GrammarKind
from tests.inference_core.grammar.hostile_grammars import alternatives, gbnf_chain, lark_chain, nested
from tests.inference_core.grammar.real_schemas import SCHEMAS

TOO_MANY = MAX_ALTERNATIVES + 1


def schema(value: Any) -> Grammar:
    return Grammar(kind="json_schema", text=value if isinstance(value, str) else json.dumps(value), param="the.field")


def check_all(given: Grammar) -> None:
    check_length(given)
    check_bounds(given)


def grammar(kind: GrammarKind, text: str) -> Grammar:
    return Grammar(kind=kind, text=text, param="the.field")


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (schema({"const": "x" * MAX_CHARACTERS}), f"{MAX_CHARACTERS} characters"),
        (grammar("lark", 'start: "a"' + " " * MAX_CHARACTERS), f"{MAX_CHARACTERS} characters"),
        (schema(nested("anyOf", 60)), f"{MAX_DEPTH} levels"),
        (schema(nested("items", 101)), f"{MAX_DEPTH} levels"),
        (schema(nested("allOf", 100_000 // 20)), f"{MAX_DEPTH} levels"),
        (grammar("lark", "start: " + "(" * 101 + '"a"' + ")" * 101), f"{MAX_DEPTH} levels"),
        (grammar("lark", "root ::= " + "(" * 101 + '"a"' + ")" * 101), f"{MAX_DEPTH} levels"),
        (grammar("regex", "(" * 101 + "a" + ")" * 101), f"{MAX_DEPTH} levels"),
        (schema({"$defs": {f"d{i}": {} for i in range(MAX_RULES + 1)}}), f"{MAX_RULES} rules"),
        (grammar("lark", lark_chain(MAX_RULES)), f"{MAX_RULES} rules"),
        (grammar("lark", gbnf_chain(MAX_RULES)), f"{MAX_RULES} rules"),
        (schema({"properties": {"a": {"enum": list(range(TOO_MANY))}}}), f"{MAX_ALTERNATIVES} alternatives"),
        (schema({"anyOf": [{"const": i} for i in range(TOO_MANY)]}), f"{MAX_ALTERNATIVES} alternatives"),
        (grammar("choice", json.dumps([f"w{i}" for i in range(TOO_MANY)])), f"{MAX_ALTERNATIVES} alternatives"),
        (grammar("lark", alternatives(TOO_MANY + 1)), f"{MAX_ALTERNATIVES} alternatives"),
        (grammar("regex", "|".join("a" for _ in range(TOO_MANY + 1))), f"{MAX_ALTERNATIVES} alternatives"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.text[:12],
)
def test_what_is_too_large_is_refused_with_the_number_allowed(given: Grammar, allowed: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"at most {allowed}") as caught:
        check_all(given)
    assert caught.value.param == "the.field"


def test_real_schemas_are_far_from_every_bound() -> None:
    together = {"$defs": {f"schema {i}": inner for i, inner in enumerate(SCHEMAS * 20)}, "anyOf": SCHEMAS * 5}
    check_bounds(schema(together))


@pytest.mark.parametrize(
    "given",
    [
        grammar("lark", 'start: a "' + "(" * 200 + '"\na: /' + "[(]" * 200 + "/\n"),
        grammar("lark", "root ::= " + " ".join('"(" [0-9(] "\\""' for _ in range(60))),
        grammar("regex", r"\(" * 500 + "[(]" * 500),
        grammar("choice", json.dumps(["(" * 500])),
    ],
    ids=["lark", "gbnf", "regex", "choice"],
)
def test_what_stands_in_literals_is_not_counted(given: Grammar) -> None:
    check_bounds(given)


def test_the_tool_whose_schema_is_too_large_is_named() -> None:
    schemas = (("tools[0].function.parameters", "{}"), ("tools[1].function.parameters", nested("items", 200)))
    with pytest.raises(InvalidRequestError) as caught:
        check_bounds(Grammar(kind="lark", text="start: x", param="tools", schemas=schemas))
    assert caught.value.param == "tools[1].function.parameters"


@given(st.sampled_from(get_args(GrammarKind)), st.text(max_size=200) | st.text('()[]{}|"/\\\n:a', max_size=200))
def test_any_text_is_let_through_or_refused(kind: GrammarKind, text: str) -> None:
    check_bounds(Grammar(kind=kind, text=text))  # what is no grammar at all, the compiler says


@pytest.mark.parametrize(
    "piece", ["a", "[", '"', '\\"', "/", "\\/", " ", "(", "a:", "a \\", "\n", '"\\\n', "[\\", "[]"]
)
@pytest.mark.parametrize("kind", ["lark", "regex"])
def test_no_text_takes_long_to_be_measured(kind: GrammarKind, piece: str) -> None:
    text = piece * (MAX_CHARACTERS // len(piece))
    began = time.process_time()
    with suppress(InvalidRequestError):
        check_bounds(Grammar(kind=kind, text=text))
    assert time.process_time() - began < 10  # where text is read again for each character, it is hours


@given(st.integers(1, 130), st.sampled_from(["anyOf", "items"]))
def test_the_depth_allowed_is_exact(depth: int, key: str) -> None:
    levels = 1 + (2 * depth if key == "anyOf" else depth)
    if levels <= MAX_DEPTH:
        check_bounds(schema(nested(key, depth)))
    else:
        with pytest.raises(InvalidRequestError, match=f"levels of nesting are allowed; it has {levels}$"):
            check_bounds(schema(nested(key, depth)))
