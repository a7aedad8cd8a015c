"""A finished answer matches its grammar, whatever the model prefers (SPEC SO-01)."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.grammar.workers import begin_masks
from inference_core.protocol import Grammar, SamplingParams
from inference_core.sampling.sampler import sample
from inference_core.step_plan import SampleSpec
from tests.examples import examples
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, ByteVocabulary, byte_compiler

COMPILER = byte_compiler()
VOCABULARY = ByteVocabulary()
# Random logits would fill strings for ever; what closes and ends is made likelier.
CLOSING = [ord('"'), ord("}"), ord("]"), 256 + 3, EOS]


def random_answer(grammar: Grammar, seed: int, most: int = 600) -> str | None:
    """What random logits make of a grammar; None if they came to no end."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(temperature=1.0, grammar=grammar)
    outputs: list[int] = []
    spec = SampleSpec(params, [1], outputs, seed, 0, (EOS,), COMPILER.compile(grammar)())
    assert spec.matcher is not None
    while len(outputs) < most:
        logits = rng.normal(0, 3, (1, SIZE)).astype(np.float32)
        logits[0, CLOSING] += 4
        spec.position = len(outputs)
        token = sample(torch.from_numpy(logits), [spec], masks=begin_masks([spec]))[0].token_id
        if token == EOS:
            return VOCABULARY.text(outputs)
        outputs.append(token)
        spec.matcher.accept(token)
    return None


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    low = st.integers(-50, 50)
    return st.one_of(
        st.builds(lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, low, st.integers(0, 1000)),
        st.builds(lambda a, b: {"type": "number", "minimum": a, "exclusiveMaximum": a + b}, low, st.integers(1, 50)),
        st.builds(
            lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, st.integers(0, 3), st.integers(0, 9)
        ),
        st.sampled_from(
            [
                {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)?$"},
                {"type": "string", "format": "date"},
                {"type": "string", "format": "uuid"},
                {"type": "boolean"},
                {"type": "null"},
                {"const": "fixed é"},
                {"enum": ["red", "green", 3, None, True]},
                {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
                {"$ref": "#/$defs/shared"},
            ]
        ),
    )


def composites(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["name", "a", "na", "total cost", "é", 'quo"te'])

    def made_object(properties: dict[str, Any], required: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:required],
            "additionalProperties": False,
        }

    return st.one_of(
        st.builds(made_object, st.dictionaries(names, inner, max_size=4), st.integers(0, 4)),
        st.builds(
            lambda i, a, b: {"type": "array", "items": i, "minItems": a, "maxItems": a + b},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


SHARED = {
    "$defs": {
        "shared": {
            "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["id"],
            "additionalProperties": False,
        }
    }
}
SCHEMAS = st.recursive(scalars(), composites, max_leaves=6).map(lambda schema: schema | SHARED)


@settings(max_examples=examples(80))
@given(SCHEMAS, st.integers(0, 2**32))
def test_a_finished_answer_validates_against_any_schema(schema: dict[str, Any], seed: int) -> None:
    answer = random_answer(Grammar(kind="json_schema", text=json.dumps(schema)), seed)
    if answer is not None:
        jsonschema.validate(json.loads(answer), schema, format_checker=jsonschema.FormatChecker(["date", "uuid"]))


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32))
def test_any_json_object_is_an_object(seed: int) -> None:
    answer = random_answer(Grammar(kind="json_object"), seed)
    assert answer is None or isinstance(json.loads(answer), dict)


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.sampled_from(["[a-f]", "(yes|no)", "[0-9]{1,3}", "x*", "é?", "\\.", "(ab|a)b", "[^a-z\\n]"]),
        min_size=1,
        max_size=4,
    ).map("".join),
    st.integers(0, 2**32),
)
def test_a_finished_answer_matches_a_regular_expression_whole(pattern: str, seed: int) -> None:
    answer = random_answer(Grammar(kind="regex", text=pattern), seed)
    assert answer is None or re.fullmatch(pattern, answer), (pattern, answer)


@settings(max_examples=examples(30))
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8), min_size=1, max_size=5),
    st.integers(0, 2**32),
)
def test_a_choice_is_one_of_its_texts(choices: list[str], seed: int) -> None:
    assert random_answer(Grammar(kind="choice", text=json.dumps(choices)), seed) in choices


def test_a_lark_grammar_and_the_same_in_gbnf_allow_the_same_sums() -> None:
    lark = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,2}/'
    gbnf = 'root ::= number ("+" number)*\nnumber ::= [0-9] [0-9]?'
    for text in (lark, gbnf):
        for seed in range(5):
            answer = random_answer(Grammar(kind="lark", text=text), seed)
            assert answer is None or re.fullmatch(r"\d{1,2}(\+\d{1,2})*", answer)
