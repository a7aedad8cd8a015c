"""Compiles grammars against a model's tokens, with refusals that name the place; runs in a grammar's own process."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from inference_core.errors import InvalidRequestError
from inference_core.grammar.failing_subschema import failing_subschema
from inference_core.grammar.json_style import JSON_STYLE
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.protocol import Grammar

_LONGEST_REASON = 400
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarCompiler:
    """Compiles against one model's tokens."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer

    def compile(
        self, grammar: Grammar, refusing: Callable[[InvalidRequestError], object] = lambda error: None
    ) -> Callable[[], GrammarMatcher]:
        """What makes matchers before their first token. Raises `InvalidRequestError` for what cannot be compiled.

        `refusing` is called with the refusal before the place in a schema that it comes of is searched for, which may
        take as long as compiling many times.
        """
        start = LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=_LIMITS)
        reason = start.get_error()
        if not start.is_error():
            # The first mask takes longest, and finds out about grammars that allow nothing.
            probe = start.deep_copy()
            first = probe.compute_bitmask()
            if not probe.is_error() and any(first):
                return partial(GrammarMatcher, start, self._tokenizer)
            reason = probe.get_error() or "it allows no text at all"
        refusing(_refused(grammar.param, reason))
        raise _refusal(grammar, reason)


def schema_error(schema: Any) -> str | None:
    """Why a JSON schema (already parsed) cannot be compiled, whatever the model; None if it can."""
    try:
        source = LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE)
    except ValueError as error:
        return str(error)
    failed, messages = LLMatcher.validate_grammar_with_warnings(source, limits=_LIMITS)
    return messages[0] if failed else None


def _refusal(grammar: Grammar, reason: str) -> InvalidRequestError:
    if grammar.kind == "json_schema":
        return _refused_schema(grammar.param, json.loads(grammar.text), reason)
    for param, text in grammar.schemas:
        schema = json.loads(text)
        wrong = schema_error(schema)
        if wrong is not None:
            return _refused_schema(param, schema, wrong)
    return _refused(grammar.param, reason)


def _refused_schema(param: str, schema: Any, reason: str) -> InvalidRequestError:
    path, inner = failing_subschema(schema, schema_error)
    return _refused(param, inner or reason, path)


def _refused(param: str, reason: str, path: str = "") -> InvalidRequestError:
    return InvalidRequestError(f"{param}{path} cannot be compiled: {_short(reason)}", param)


def _short(reason: str) -> str:
    line = " ".join(reason.replace("<non-verbose/>", "").split())
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
    # One terminal: as alternatives of a rule, some thousands of texts pass the parser's limits and take its time.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _json(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{grammar.param} is no JSON: {error}", grammar.param) from error
