"""Compiles grammars against a model's tokens; errors name the failing part. Runs in a grammar's own process."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from inference_core.errors import InvalidRequestError
from inference_core.grammar.failing_subschema import failing_subschema
from inference_core.grammar.json_style import JSON_STYLE
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.schema_rewriting import InexpressibleError, for_library
from inference_core.grammar.turning_point import turning_point
from inference_core.grammar.validation import AnswerValidator
from inference_core.protocol import Grammar

ErrorOf = Callable[[str], str | None]
"""Why a text is no finished answer; None if it is one."""
# A schema after `%json`; texts, regular expressions and comments of a Lark grammar are skipped.
_EMBEDDED = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*+|/(?:\\.|[^/\\\n])++/?|(?P<schema>%json\s*+(?=\{))')
_DECODER = json.JSONDecoder()
_LONGEST_REASON = 400
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarCompiler:
    """Compiles against one model's tokens."""

    def __init__(
        self, tokenizer: LLTokenizer, checked: Callable[[ErrorOf], ErrorOf] = lambda error_of: error_of
    ) -> None:
        """`checked`: puts limits on the validation of one answer."""
        self._tokenizer, self._checked = tokenizer, checked

    def compile(
        self, grammar: Grammar, refusing: Callable[[InvalidRequestError], object] = lambda error: None
    ) -> Callable[[], GrammarMatcher]:
        """Compile `grammar`. Returns a factory of matchers. Raises `InvalidRequestError` if it cannot be compiled.

        `refusing` is called with the error before the search for the failing part of a schema, which may take as long
        as many compilations.
        """
        start = LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=_LIMITS)
        reason = start.get_error()
        if not start.is_error():
            # The first mask takes longest, and detects grammars that allow nothing.
            probe = start.deep_copy()
            first = probe.compute_bitmask()
            reason = probe.get_error() or "it allows no text at all"
            if not probe.is_error() and any(first):
                make = self._factory(grammar, start)
                # The first mask of an answer may exceed a limit, together with the one before.
                answer = make()
                answer.masks()
                if answer.reason is None:
                    return make
                reason = answer.reason
        refusing(_refused(grammar.param, reason))
        raise _refusal(grammar, reason)

    def _factory(self, grammar: Grammar, start: LLMatcher) -> Callable[[], GrammarMatcher]:
        if grammar.kind != "json_schema":
            return partial(GrammarMatcher, start, self._tokenizer)
        validator = AnswerValidator(grammar.text)
        avoided = turning_point(GrammarMatcher(start, self._tokenizer), self._tokenizer, validator, grammar.avoid)
        return lambda: GrammarMatcher(start, self._tokenizer, self._checked(validator.error), avoided)


def schema_error(schema: Any) -> str | None:
    """Why a parsed JSON schema cannot be compiled for any model; None if it can."""
    try:
        source = LLMatcher.grammar_from_json_schema(for_library(schema), defaults=JSON_STYLE)
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
    try:
        for_library(schema)
    except InexpressibleError as error:
        return _refused(param, str(error), error.path)
    path, inner = failing_subschema(schema, schema_error)
    return _refused(param, inner or reason, path)


def _refused(param: str, reason: str, path: str = "") -> InvalidRequestError:
    return InvalidRequestError(f"{param}{path} cannot be compiled: {_short(reason)}", param)


def _short(reason: str) -> str:
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"


def _source(grammar: Grammar) -> str:
    """The grammar in the library's format. Raises `InvalidRequestError` if it is not JSON or not a list of strings."""
    if grammar.kind == "json_object":
        return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=JSON_STYLE)
    if grammar.kind == "json_schema":
        return _schema_source(grammar)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(_choice_source(grammar))
    try:
        return LLMatcher.grammar_from_lark(_with_rewritten_schemas(any_to_lark(grammar.text)))
    except Exception as error:  # The converter raises plain Exception.
        raise InvalidRequestError(f"{grammar.param} is neither Lark nor GBNF: {error}", grammar.param) from error


def _with_rewritten_schemas(lark: str) -> str:
    """The grammar with the JSON schemas in it rewritten, as `for_library` does. Raises `ValueError` for no JSON."""
    pieces, end = [], 0
    for match in _EMBEDDED.finditer(lark):
        if match["schema"] is None or match.start() < end:
            continue
        schema, length = _DECODER.raw_decode(lark[match.end() :])
        pieces += [lark[end : match.end()], json.dumps(for_library(schema))]
        end = match.end() + length
    return "".join([*pieces, lark[end:]])


def _schema_source(grammar: Grammar) -> str:
    schema = _json(grammar)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{grammar.param} must be a JSON object, a schema", grammar.param)
    try:
        return LLMatcher.grammar_from_json_schema(for_library(schema), defaults=JSON_STYLE)
    except InexpressibleError as error:
        raise _refused(grammar.param, str(error), error.path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{grammar.param} cannot be compiled: {error}", grammar.param) from error


def _choice_source(grammar: Grammar) -> str:
    choices = _json(grammar)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise InvalidRequestError(f"{grammar.param} must be a list of texts, none of them empty", grammar.param)
    # One terminal: as alternatives of a rule, thousands of texts exceed the parser's limits and are slow.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _json(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{grammar.param} is no JSON: {error}", grammar.param) from error
