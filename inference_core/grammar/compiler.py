"""Compiles grammars against a model's tokens; errors name the failing part. Runs in a grammar's own process.

The failing part is the smallest part of a JSON schema that cannot be compiled. An answer that could not end valid is
left at its turning point when it is made again.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import quote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from inference_core.errors import InvalidRequestError
from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.schema_rewriting import LISTS, MAPPINGS, ONE, InexpressibleError, for_library
from inference_core.grammar.validation import AnswerValidator, UncheckedError
from inference_core.grammar.vocabulary import JSON_STYLE
from inference_core.protocol import Grammar

_MOST_TRIALS = 500
# The identifier of a whole schema that has none: references in its parts are relative to it.
_WHOLE = "aio:whole"


def failing_subschema(schema: Any, error_of: Callable[[Any], str | None]) -> tuple[str, str | None]:
    """Return the path of the smallest failing part of `schema`, such as `.properties.age`, and its `error_of`.

    Descends into parts that fail for the same reason on their own; ("", the schema's error) if none does. A part is
    tried where it stands, so that its references lead to what they lead to in the whole.
    """
    path, part, pointer, reason = "", schema, "", error_of(schema)
    if not isinstance(schema, dict):
        return path, reason
    key = "id" if "id" in schema and "$id" not in schema else "$id"
    identifier = schema.get(key)
    name = identifier.removesuffix("#") if isinstance(identifier, str) and ":" in identifier else _WHOLE
    # Identifiers are found where the draft has schemas.
    definitions = "$defs" if "/20" in str(schema.get("$schema", "/20")) else "definitions"
    kind = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    whole = {**schema, key: name}
    trials, going = _MOST_TRIALS, True
    while going:
        going = False
        for step, reference, inner in _parts(part):
            if trials == 0:
                break
            trials -= 1
            error = error_of({**kind, definitions: {"whole": whole}, "$ref": f"{name}#{pointer}{reference}"})
            if _cause(error) == _cause(reason) is not None:
                path, part, pointer, going = path + step, inner, pointer + reference, True
                break
    return path, reason


def _cause(error: str | None) -> str | None:
    return error and error.partition("while processing")[0].strip()


def _parts(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """The schemas directly in a schema: the step of the path, the step of a reference, the part."""
    if not isinstance(schema, dict):
        return
    for key in MAPPINGS:
        if isinstance(schema.get(key), dict):
            for name, inner in schema[key].items():
                if isinstance(inner, dict):
                    yield f".{key}.{name}", f"/{key}/{_escaped(name)}", inner
    for key in LISTS:
        if isinstance(schema.get(key), list):
            for index, inner in enumerate(schema[key]):
                if isinstance(inner, dict):
                    yield f".{key}[{index}]", f"/{key}/{index}", inner
    yield from ((f".{key}", f"/{key}", schema[key]) for key in ONE if isinstance(schema.get(key), dict))


def _escaped(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~!$&'()*+,;=:@")


_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


def turning_point(
    matcher: GrammarMatcher, tokenizer: LLTokenizer, validator: AnswerValidator, answer: Sequence[int]
) -> tuple[list[int], int] | None:
    """Return the tokens of `answer` before its first choice from the value that does not hold on, and the one drawn
    there; of an answer without such a choice its last one; None if it has none.

    `matcher`: in its initial state, without validation.
    """
    if not answer:
        return None
    text = tokenizer.decode_bytes(list(answer)).decode("utf-8", "replace")
    path = validator.failing_path(text)
    begin = 0 if path is None else len(text[: value_start(text, path)].encode())
    reached, choice = 0, None
    for index, token in enumerate(answer):
        reached += len(tokenizer.decode_bytes([token]))
        if not matcher.forced_tokens():
            matcher.ask_masks(())
            if int.from_bytes(matcher.masks()[0], "little").bit_count() > 1:
                choice = index
                if reached > begin:
                    break
        matcher.accept(token)
    return None if choice is None else (list(answer[:choice]), answer[choice])


def value_start(text: str, path: Sequence[str | int]) -> int:
    """Return where in a JSON text the value at `path` begins; of a value that is not there, that of the last part."""
    offset = _skipped(text, 0)
    for step in path:
        inner = _members(text, offset).get(step)
        if inner is None:
            break
        offset = inner
    return offset


def _members(text: str, offset: int) -> dict[str | int, int]:
    """The starts of the values in the object or array at `offset`."""
    starts: dict[str | int, int] = {}
    closing = {"{": "}", "[": "]"}.get(text[offset : offset + 1])
    if closing is None:
        return starts
    offset = _skipped(text, offset + 1)
    while text[offset : offset + 1] not in (closing, ""):
        name: str | int = len(starts)
        if closing == "}":
            name, offset = scanstring(text, offset + 1)
            offset = _skipped(text, _skipped(text, offset) + 1)
        starts[name] = offset
        _, offset = _DECODER.raw_decode(text, offset)
        offset = _skipped(text, offset)
        if text[offset : offset + 1] == ",":
            offset = _skipped(text, offset + 1)
    return starts


def _skipped(text: str, offset: int) -> int:
    while text[offset : offset + 1] and text[offset] in _SPACE:
        offset += 1
    return offset


ErrorOf = Callable[[str], str | None]
"""Why a text is no finished answer; None if it is one."""
# A schema after `%json`; texts, regular expressions and comments of a Lark grammar are skipped.
_EMBEDDED = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*+|/(?:\\.|[^/\\\n])++/?|(?P<schema>%json\s*+(?=\{))')
_LONGEST_REASON = 400
_LIMITS = LLParserLimits(verbose_errors=False)


class _Tokens:
    """The attributes that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], eos_token_id: int, encode: Callable[[str], list[int]]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # special tokens are marked in `tokens`
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def trie_of(tokens: list[bytes], eos_token_ids: Sequence[int], encode: Callable[[str], list[int]]) -> LLTokenizer:
    """Build the trie; takes a large part of a second. `tokens`: see `marked_tokens`. `encode` tokenises text.

    `eos_token_ids`, at least one, are allowed only where a grammar accepts.
    """
    wrapper = _Tokens(tokens, eos_token_ids[0], encode)
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]


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

        `refusing` gets the error before the search for the failing part of a schema, which may take long.
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
        try:
            validator = AnswerValidator(grammar.text)
        except UncheckedError as error:
            raise _refused(grammar.param, str(error)) from error
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
    except InexpressibleError as error:
        raise _refusal(grammar, str(error)) from error
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
