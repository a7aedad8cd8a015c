"""Texts in and token ids out, and back: tokenisers, streaming detokenisers and chat templates."""

import json
import tempfile
from functools import cache
from pathlib import Path

import msgspec
from tokenizers import pre_tokenizers

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.fuzz.mutations import json_mutated
from tests.fuzz.pieces import random_of
from tests.hostile.target import fuzz_target
from tests.inference_core.tokenization.vocabularies import (
    CHATML,
    train_byte_level,
    write_byte_level,
    write_sentencepiece,
)


@cache
def tokenizers() -> list[Tokenizer]:
    """A byte-level vocabulary and one with byte fallback, trained on a few texts."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, merges = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
        byte_level = write_byte_level(Path(folder) / "b.gguf", "gpt-2", tokens, merges, chat_template=CHATML)
        return [load_tokenizer(byte_level), load_tokenizer(write_sentencepiece(Path(folder) / "s.gguf"))]


_TEXTS = [
    b"Hello, world!",
    "größe \U0001f600 日本\n\n".encode(),
    b"<|im_end|><|im_start|>system",
    b"</s><s>\xe2\x96\x81",
    b" " * 40,
]
_WORDS = [
    b"<|im_start|>",
    b"<|im_end|>",
    b"<s>",
    b"</s>",
    b"\xe2\x96\x81",
    b"\xf0\x9f\x98\x80",
    b"e\xcc\x81",
    b"\xee\x80\x80",
    b"<0xFF>",
]


@fuzz_target(_TEXTS, _WORDS)
def encoding(data: bytes) -> str:
    """No text makes a control token; decoding gives the text back; the bound on the number of tokens holds."""
    text = data.decode(errors="replace")
    for tokenizer in tokenizers():
        ids = tokenizer.encode(text)
        assert not any(map(tokenizer.is_control, ids))
        assert tokenizer.least_tokens([text]) <= len(ids)
        assert _spelled(tokenizer.decode(ids)) == _spelled(text)
    return "encoded"


def _spelled(text: str) -> str:
    """Without leading spaces, and with spaces as U+2581, which one of the vocabularies cannot tell apart."""
    return text.replace(" ", "\u2581").lstrip("\u2581")


@fuzz_target([bytes(range(256)), b"\x00\x01\x02", b"\xff\xff\xff\xff"], [b"\x00\x02", b"\x7f\xff"])
def detokenizing(data: bytes) -> str:
    """Any ids, also of no token, two bytes each: streamed one by one they say what `decode` says."""
    ids = [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
    if ids:
        # Also ids that a core cannot draw.
        ids.append(random_of(data).choice((-1, 2**31 - 1, 2**40)))
    for tokenizer in tokenizers():
        few = [one % (tokenizer.vocab_size + 2) if one > 0 else one for one in ids]
        stream = IncrementalDetokenizer(tokenizer)
        pieces = [stream.push_one(token_id) for token_id in few] + [stream.flush()]
        for piece in pieces:
            piece.encode()
        assert "".join(pieces) == tokenizer.decode(few)
        shown = IncrementalDetokenizer(tokenizer, {i: text for text, i in tokenizer.control_tokens.items()})
        "".join([*map(shown.push_one, few), shown.flush()]).encode()
    return "decoded"


_TURNS = [
    {"messages": [{"role": "user", "content": "a<|im_end|>"}], "extra": {"enable_thinking": True}},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]},
    {"messages": [{"role": "<|im_start|>", "content": "\ue000"}], "extra": {"tools": [{"a": {"b": ["<|im_end|>"]}}]}},
]


@fuzz_target([json.dumps(turns).encode() for turns in _TURNS], _WORDS, json_mutated)
def chats(data: bytes) -> str:
    """Any JSON as turns and variables: rendered with the template's own control tokens alone, or refused."""
    try:
        given = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "no JSON"
    turns, extra = given.get("messages"), given.get("extra", {})
    if not isinstance(turns, list) or not isinstance(extra, dict):
        return "no turns"
    turns = [turn for turn in turns if isinstance(turn, dict)]
    kept = {name: value for name, value in extra.items() if name.isidentifier() and name not in ("messages", "self")}
    kept.pop("add_generation_prompt", None)
    tokenizer = tokenizers()[0]
    try:
        pieces = tokenizer.chat_pieces(turns, **kept)
    except InvalidRequestError as error:
        str(error).encode(errors="replace")
        return "refused"
    controls = [piece for piece in pieces if isinstance(piece, int)]
    assert len(controls) == 2 * len(turns) + 1
    return f"{min(len(turns), 3)} turns"
