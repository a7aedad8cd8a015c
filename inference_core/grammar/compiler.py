"""Grammars of one model, compiled once: a cache bounded in entries and in text, and refusals that name the place."""

import json
from collections import OrderedDict
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from inference_core.errors import InvalidRequestError
from inference_core.grammar.json_style import JSON_STYLE
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.matcher_seam import MakeMatcher
from inference_core.grammar.schema_place import failing_place
from inference_core.protocol import Grammar

MAX_CACHED = 256
MAX_CACHED_CHARACTERS = 16 << 20
_LONGEST_REASON = 400
# Bounds on what a hostile grammar may cost: building takes at most some tens of milliseconds per unit of fuel here.
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarCompiler:
    """Compiles against one model's tokens, on one thread."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._characters = 0

    def compile(self, grammar: Grammar) -> MakeMatcher:
        """What makes matchers before their first token. Raises `InvalidRequestError` for what cannot be compiled."""
        key = (grammar.kind, grammar.text)
        start = self._compiled.get(key)
        if start is None:
            start = self._compile(grammar)
            self._keep(key, start)
        return partial(GrammarMatcher, start, self._tokenizer)

    def find(self, grammar: Grammar) -> MakeMatcher | None:
        """The same if the grammar has been compiled before, from any thread."""
        start = self._compiled.get((grammar.kind, grammar.text))
        return None if start is None else partial(GrammarMatcher, start, self._tokenizer)

    def __len__(self) -> int:
        return len(self._compiled)

    def _keep(self, key: tuple[str, str], start: LLMatcher) -> None:
        self._compiled[key] = start
        self._characters += len(key[1])
        while len(self._compiled) > MAX_CACHED or (
            self._characters > MAX_CACHED_CHARACTERS and len(self._compiled) > 1
        ):
            (_, text), _ = self._compiled.popitem(last=False)
            self._characters -= len(text)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        source = _source(grammar)
        start = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if start.is_error():
            raise self._refusal(grammar, start.get_error())
        # The first mask takes longest, and finds out about grammars that allow nothing.
        probe = start.deep_copy()
        first = probe.compute_bitmask()
        if probe.is_error() or not any(first):
            raise self._refusal(grammar, probe.get_error() or "it allows no text at all")
        return start

    def _refusal(self, grammar: Grammar, reason: str) -> InvalidRequestError:
        if grammar.kind == "json_schema":
            return _refused_schema(grammar.param, json.loads(grammar.text), reason)
        for param, text in grammar.schemas:
            schema = json.loads(text)
            wrong = schema_error(schema)
            if wrong is not None:
                return _refused_schema(param, schema, wrong)
        return InvalidRequestError(f"{grammar.param} cannot be compiled: {_short(reason)}", grammar.param)


def schema_error(schema: Any) -> str | None:
    """Why a JSON schema (already parsed) cannot be compiled, whatever the model; None if it can."""
    try:
        source = LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE)
    except ValueError as error:
        return str(error)
    failed, messages = LLMatcher.validate_grammar_with_warnings(source, limits=_LIMITS)
    return messages[0] if failed else None


def _refused_schema(param: str, schema: Any, reason: str) -> InvalidRequestError:
    path, inner = failing_place(schema, schema_error)
    where = f"{param}{path}"
    return InvalidRequestError(f"{where} cannot be compiled: {_short(inner or reason)}", param)


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"


def _source(grammar: Grammar) -> str:
    """In the library's own format. Raises `InvalidRequestError` for what is no JSON or no list of texts."""
    if grammar.kind == "json_object":
        return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=JSON_STYLE)
    if grammar.kind == "json_schema":
        return _schema_source(grammar)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(_choice_source(grammar))
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
    except Exception as error:  # The converter raises plain Exception.
        raise InvalidRequestError(f"{grammar.param} is neither Lark nor GBNF: {error}", grammar.param) from error


def _schema_source(grammar: Grammar) -> str:
    schema = _json(grammar)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{grammar.param} must be a JSON object, a schema", grammar.param)
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE)
    except ValueError as error:
        raise InvalidRequestError(f"{grammar.param} cannot be compiled: {error}", grammar.param) from error


def _choice_source(grammar: Grammar) -> str:
    choices = _json(grammar)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise InvalidRequestError(f"{grammar.param} must be a list of texts, none of them empty", grammar.param)
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _json(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{grammar.param} is no JSON: {error}", grammar.param) from error
