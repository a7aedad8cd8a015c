"""Grammars of answers in channels: whatever is drawn under them is read as thoughts and a bound answer or call."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from inference_core.grammar.compiler import GrammarCompiler, trie_of
from inference_core.grammar.vocabulary import marked_tokens
from inference_core.grammar.workers import begin_masks
from inference_core.protocol import Grammar, SamplingParams
from inference_core.sampling.sampler import sample
from inference_core.step_plan import SampleSpec
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.harmony_vocabulary import SIZE, write_harmony_tokenizer
from tiers.conversation import Tool, Tooling
from tiers.dialects.written.harmony import MARKS, ChannelParser, harmony_grammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="add", parameters=SCHEMA, strict=True), Tool(name="now"))
JSON = Grammar(kind="json_schema", text=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_harmony_tokenizer(tmp_path_factory.mktemp("harmony")))


class Draws:
    """Random answers under a grammar, with control tokens and closing brackets likelier."""

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar) -> None:
        self._tokenizer = tokenizer
        self._ends = tuple(tokenizer.control_tokens[text] for text in ("<|return|>", "<|call|>"))
        trie = trie_of(marked_tokens(tokenizer, SIZE), self._ends, tokenizer.encode_continued)
        self._matcher = GrammarCompiler(trie).compile(grammar)
        self._params = SamplingParams(temperature=1.0, grammar=grammar)

    def draw(self, seed: int, most: int = 2000) -> list[int]:
        rng, outputs = np.random.default_rng(seed), []
        spec = SampleSpec(self._params, [1], outputs, seed, 0, self._ends, self._matcher())
        assert spec.matcher is not None
        while len(outputs) < most:
            logits = rng.normal(0, 3, (1, SIZE)).astype(np.float32)
            logits[0, [*self._tokenizer.encode('"}]'), *range(256, SIZE)]] += 4
            spec.position = len(outputs)
            token = sample(torch.from_numpy(logits), [spec], masks=begin_masks([spec]))[0].token_id
            if token in self._ends:
                return outputs
            outputs.append(token)
            spec.matcher.accept(token)
        raise AssertionError("the grammar came to no end")

    def read(self, seed: int, names: tuple[str, ...] = ()) -> tuple[str, str, list[tuple[str, str]]]:
        """Reasoning, text, and the calls' names and arguments."""
        marks = {self._tokenizer.control_tokens[text]: mark for text, mark in MARKS.items()}
        parser, raw, run = ChannelParser(names), "", []
        for token in self.draw(seed):
            if token in marks:
                raw, run = raw + self._tokenizer.decode(run) + marks[token], []
            else:
                run.append(token)
        said = [parser.feed(raw + self._tokenizer.decode(run)), parser.finish()]
        calls = [call for part in said for call in part.calls]
        names_called = [call.name for call in calls if call.id]
        assert len(names_called) <= 1
        joined = "".join(call.arguments for call in calls)
        return "".join(s.reasoning for s in said), "".join(s.text for s in said), [(n, joined) for n in names_called]


def draws(harmony: Tokenizer, tooling: Tooling | None, answer: Grammar | None, *, thinks: bool = True) -> Draws:
    grammar = harmony_grammar(tooling, harmony.control_tokens, answer, thinks=thinks)
    assert grammar is not None
    return Draws(harmony, grammar)


def test_an_answer_is_bound_and_thoughts_before_it_are_free(harmony: Tokenizer) -> None:
    bound = draws(harmony, None, JSON)
    read = [bound.read(seed) for seed in range(12)]
    for _, text, calls in read:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert not calls
    assert any(reasoning for reasoning, _, _ in read)
    assert any(not reasoning for reasoning, _, _ in read)


def test_without_thoughts_the_answer_comes_at_once(harmony: Tokenizer) -> None:
    bound = draws(harmony, None, JSON, thinks=False)
    assert all(bound.read(seed)[0] == "" for seed in range(8))
    free = draws(harmony, None, None, thinks=False)
    assert all(free.read(seed)[0] == "" for seed in range(8))


@pytest.mark.parametrize(
    "answer",
    [
        Grammar(kind="json_object"),
        Grammar(kind="regex", text=r"[a-c]{2}/\d\\/[^/]"),
        Grammar(kind="choice", text='["yes", "no \\"never\\""]'),
    ],
)
def test_every_kind_of_bound_stands_in_the_final_channel(harmony: Tokenizer, answer: Grammar) -> None:
    bound = draws(harmony, None, answer)
    for seed in range(6):
        text = bound.read(seed)[1]
        if answer.kind == "json_object":
            assert isinstance(json.loads(text), dict)
        elif answer.kind == "choice":
            assert text in json.loads(answer.text)
        else:
            assert re.fullmatch(answer.text, text, re.DOTALL)


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_forced_call_is_valid_and_nothing_else_is_said(harmony: Tokenizer, choice: Any) -> None:
    named = "add" if choice == "named" else None
    forced = draws(harmony, Tooling(tools=TOOLS, choice=choice, name=named), None)
    called = set()
    for seed in range(12):
        _, text, ((name, arguments),) = forced.read(seed, ("add", "now"))
        called.add(name)
        jsonschema.validate(json.loads(arguments), SCHEMA if name == "add" else TOOLS[1].schema)
        assert text == ""
    assert called == ({"add", "now"} if choice == "required" else {"add"})


def test_calls_at_will_are_bound_where_a_tool_is_strict_or_the_answer_is_bound(harmony: Tokenizer) -> None:
    for answer in (None, JSON):
        either = draws(harmony, Tooling(tools=TOOLS), answer)
        kinds = set()
        for seed in range(16):
            _, text, calls = either.read(seed, ("add", "now"))
            kinds.add(bool(calls))
            if calls and calls[0][0] == "add":
                jsonschema.validate(json.loads(calls[0][1]), SCHEMA)
            if not calls and answer is not None:
                jsonschema.validate(json.loads(text), SCHEMA)
        assert kinds == {True, False}


def test_what_is_free_has_no_grammar(harmony: Tokenizer) -> None:
    controls = harmony.control_tokens
    assert harmony_grammar(None, controls, None, thinks=True) is None
    assert harmony_grammar(Tooling(tools=TOOLS[1:]), controls, None, thinks=True) is None
    assert harmony_grammar(Tooling(tools=TOOLS, choice="none"), controls, None, thinks=True) is None
