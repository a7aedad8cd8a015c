"""A matcher: masks by position, forced tokens, drafts looked at and forgotten again."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import InvalidRequestError
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.workers import TokenMask, begin_masks
from inference_core.protocol import Grammar, SamplingParams
from inference_core.step_plan import SampleSpec
from tests.examples import examples
from tests.inference_core.grammar.byte_vocabulary import CONTROL, EOS, SIZE, ByteVocabulary, byte_compiler

VOCABULARY = ByteVocabulary()
COMPILER = byte_compiler()
NAMED = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "na"]}},
    "required": ["name"],
    "additionalProperties": False,
}
EMPTY = '{"type": "integer", "minimum": 2, "maximum": 1}'


def matcher(**fields: str) -> GrammarMatcher:
    return COMPILER.compile(Grammar(**fields))()  # type: ignore[arg-type]


def tokens_of(mask: TokenMask) -> set[int]:
    row = np.zeros(SIZE, np.float32)
    mask.apply(row)
    return set(np.flatnonzero(row == 0).tolist())


def allowed(of: GrammarMatcher, drafts: tuple[int, ...] = ()) -> list[set[int]]:
    of.ask_masks(drafts)
    return [tokens_of(TokenMask.of_bytes(mask)) for mask in of.masks()]


def test_the_end_is_allowed_where_the_grammar_accepts_and_nowhere_else() -> None:
    m = matcher(kind="regex", text="ab?")
    assert allowed(m) == [{ord("a"), 256 + LONGER_AB}]
    m.accept(ord("a"))
    assert allowed(m) == [{ord("b"), EOS}]
    m.accept(ord("b"))
    assert allowed(m) == [{EOS}]


LONGER_AB = 11


def test_control_tokens_are_no_text() -> None:
    m = matcher(kind="regex", text="(?s:.*)")
    assert CONTROL not in allowed(m)[0]
    assert EOS in allowed(m)[0]


def test_what_a_schema_forces_is_known_in_advance_in_the_tokenisers_own_tokens() -> None:
    m = matcher(kind="json_schema", text=json.dumps(NAMED))
    forced = m.forced_tokens()
    text = VOCABULARY.text(forced)
    assert text
    assert '{"name": "'.startswith(text)
    assert forced == VOCABULARY.encode_continued(text)
    for place, token in enumerate(forced):
        assert allowed(m) == [{token}]
        assert m.forced_tokens() == forced[place:]
        m.accept(token)


def test_masks_of_drafted_positions_are_those_of_going_there() -> None:
    m = matcher(kind="json_schema", text=json.dumps(NAMED))
    drafts = tuple(VOCABULARY.encode_continued('{"name": "ab"}'))
    seen = allowed(m, drafts)
    again = allowed(m, drafts)
    walked = []
    for token in drafts:
        walked += allowed(m)
        m.accept(token)
    assert seen == again == [*walked, *allowed(m)]
    assert seen[-1] == {EOS}


def test_a_draft_that_is_not_allowed_leaves_the_matcher_where_it_was() -> None:
    m = matcher(kind="regex", text="[a-c]{3}")
    first = allowed(m)
    assert allowed(m, (ord("a"), ord("z"), ord("b")))[:2] == [first[0], allowed(m, (ord("a"),))[1]]
    assert allowed(m) == first


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from("abc"), min_size=0, max_size=6), st.integers(0, 6))
def test_looking_ahead_changes_nothing(drafts: list[str], walked: int) -> None:
    m, untouched = matcher(kind="regex", text="([ab]c?)+"), matcher(kind="regex", text="([ab]c?)+")
    for token in [ord(c) for c in "abcaba"][:walked]:
        m.accept(token)
        untouched.accept(token)
        m.ask_masks([ord(d) for d in drafts])
        m.masks()
    assert allowed(m) == allowed(untouched)


def test_matchers_of_one_grammar_do_not_move_each_other() -> None:
    first, second = matcher(kind="regex", text="abc"), matcher(kind="regex", text="abc")
    before = allowed(second)
    first.accept(ord("a"))
    assert allowed(second) == before != allowed(first)


def test_masks_of_a_step_are_those_of_its_rows_with_their_drafts() -> None:
    def spec(grammar: Grammar | None) -> SampleSpec:
        made = None if grammar is None else COMPILER.compile(grammar)()
        return SampleSpec(SamplingParams(), [1], [], 0, 0, (EOS,), made)

    ab = Grammar(kind="regex", text="[ab]c")
    masks = begin_masks([spec(None), spec(ab), spec(None), spec(ab)], [[7, 8], [ord("a")], [], []])
    assert masks is not None
    rows = {row: tokens_of(mask) for row, mask in masks.wait().items()}
    assert rows == {3: {ord("a"), ord("b")}, 4: {ord("c")}, 6: {ord("a"), ord("b")}}
    assert begin_masks([spec(None)]) is None


@pytest.mark.parametrize(
    ("grammar", "param", "said"),
    [
        (Grammar(kind="regex", text="(", param="structured_outputs.regex"), "structured_outputs.regex", "compiled"),
        (Grammar(kind="regex", text="(?=a)b"), "response_format", "compiled"),
        (Grammar(kind="lark", text="start: missing"), "response_format", "missing"),
        (Grammar(kind="lark", text="no grammar"), "response_format", "compiled|Lark"),
        (Grammar(kind="choice", text="[]"), "response_format", "list of texts"),
        (Grammar(kind="choice", text='["a", ""]'), "response_format", "list of texts"),
        (Grammar(kind="json_schema", text="{"), "response_format", "no JSON"),
        (Grammar(kind="json_schema", text="3"), "response_format", "schema"),
        (Grammar(kind="json_schema", text='{"type": "strange"}'), "response_format", "strange"),
        (Grammar(kind="json_schema", text='{"$ref": "#/$defs/none"}'), "response_format", "none"),
        (Grammar(kind="json_schema", text=EMPTY), "response_format", "compiled"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_by_its_field(grammar: Grammar, param: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        COMPILER.compile(grammar)
    assert caught.value.param == param


def test_the_place_in_a_schema_that_cannot_be_compiled_is_named() -> None:
    bad = {"type": "array", "uniqueItems": True}
    schema = {
        "type": "object",
        "properties": {
            "fine": {"type": "string"},
            "list": {"type": "array", "items": {"anyOf": [{"type": "null"}, bad]}},
        },
    }
    with pytest.raises(InvalidRequestError, match=r"schema\.properties\.list\.items\.anyOf\[1\] .*uniqueItems"):
        COMPILER.compile(
            Grammar(kind="json_schema", text=json.dumps(schema), param="response_format.json_schema.schema")
        )


def test_the_tool_whose_schema_is_at_fault_is_named() -> None:
    schemas = (
        ("tools[0].function.parameters", '{"type": "object"}'),
        ("tools[1].function.parameters", '{"type": "odd"}'),
    )
    grammar = Grammar(kind="lark", text='start: %json {"type": "odd"}', param="tools", schemas=schemas)
    with pytest.raises(InvalidRequestError) as caught:
        COMPILER.compile(grammar)
    assert caught.value.param == "tools[1].function.parameters"
