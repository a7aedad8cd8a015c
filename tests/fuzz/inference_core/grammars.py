"""Grammars that callers write: their bounds, and their compilation in a process that may die."""

import json

from inference_core.errors import CoreError, InvalidRequestError
from inference_core.grammar.limits import check_bounds, check_length
from inference_core.grammar.workers import GrammarWorkers
from inference_core.protocol import Grammar, GrammarKind, ModelInfo
from tests.hostile.target import fuzz_target
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, ByteVocabulary

_KINDS: tuple[GrammarKind, ...] = ("json_schema", "regex", "lark", "choice")
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^a+$", "maxLength": 3}, "b": {"$ref": "#/$defs/c"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"c": {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": [1, "x", None]}, {"const": 1}]}},
}
_ARRAY = {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1, "maxItems": 9}
_SEEDS = [
    b"0" + json.dumps(_SCHEMA).encode(),
    b"0" + json.dumps(_ARRAY).encode(),
    b"1[a-z]+@(foo|bar)\\.com{1,3}\\d?",
    b'2start: a | b\na: "x" /[0-9]+/\nb[lazy]: TEXT "y"\nTEXT: /(.|\\n)*/',
    b'2root ::= "a" | [b-z]+ ws\nws ::= [ \\t\\n]*',
    b'3["a", "b\\n"]',
]
_WORDS = [
    b'"type"',
    b'"anyOf"',
    b'"allOf"',
    b'"$ref"',
    b'"#"',
    b'"pattern"',
    b'"enum"',
    b'"minimum"',
    b'"items"',
    b'"format"',
    b"{1,99999}",
    b"(?:",
    b"(?=",
    b"\\p{L}",
    b"[^",
    b"]",
    b"|",
    b"*",
    b"%json ",
    b"::=",
    b"start: ",
    b"%ignore ",
    b"<[1]>",
    b'"minLength": 99999999',
    b'"maxItems"',
    b'"not"',
    b'"oneOf"',
    b'"if"',
    b'"x-guidance"',
    b"(a*)*",
]


def grammar_of(data: bytes) -> Grammar:
    """Return a grammar of the kind that the first byte says."""
    return Grammar(kind=_KINDS[(data[0] if data else 0) % 4], text=data[1:].decode(errors="replace"), param="p")


@fuzz_target(_SEEDS, _WORDS, most_bytes=1 << 18)
def bounds(data: bytes) -> str:
    """Sizes are counted in linear time, or the grammar is refused."""
    grammar = grammar_of(data)
    try:
        check_length(grammar)
        check_bounds(grammar)
    except InvalidRequestError as error:
        str(error).encode()
        return "refused"
    return grammar.kind


_workers: list[GrammarWorkers] = []


@fuzz_target(_SEEDS, _WORDS, inputs=150)
def compilation(data: bytes) -> str:
    """A matcher, or an error for the caller, within the time limit; whatever happens to the process that compiles."""
    if not _workers:
        _workers.append(GrammarWorkers(lambda info: ByteVocabulary(), {"m": (EOS,)}))
    info = ModelInfo(name="m", model_path="", max_context=64, vocab_size=SIZE, weight_bytes=0, compute="float32")
    try:
        matchers = _workers[0].compile(info, grammar_of(data), "t").result(60)
        matchers()
    except CoreError as error:
        str(error).encode()
        return type(error).__name__
    return "compiled"
