"""A text never has fewer tokens than the bound from its bytes; for unknown tokenisers there is no bound."""

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.token_bound import NFC_SHRINKAGE, TokenBound, byte_level_bound
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.sample_texts import TEXTS
from tests.inference_core.tokenization.test_hf_vocabulary import byte_level_backend, save, sentencepiece_backend
from tests.inference_core.tokenization.vocabularies import (
    sentencepiece_vocabulary,
    train_byte_level,
    write_byte_level,
    write_sentencepiece,
)

# What tokenisers join, drop, compose, mark or take for their own; each is repeated, since bounds are of long texts.
FRAGMENTS = [
    " ",
    "  ",
    "\n",
    "\t",
    "a",
    "the ",
    "-",
    "#",
    "=",
    "0",
    "12",
    "\x04",
    "\x00",
    "\u2581",
    "<0x41>",
    "<think>",
]
FRAGMENTS += ["<|im_start|>", "</s>", "<unk>", "é", "e\u0301", "\u212a", "\u1fbe\u0308\u0301", "\u1100\u1161\u11a8"]
FRAGMENTS += ["漢", "😀", "\U00100000", "\U00050000", "\u0344", "Hello, world!", "def f(x):\n    "]
HOSTILE = st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 40)), max_size=8).map(
    lambda runs: "".join(text * times for text, times in runs)
)

KINDS = ["smollm2", "smollm", "gpt-2", "llama-bpe", "qwen2", "sentencepiece", "no prefix"]
KINDS += ["hf", "hf composed", "hf prepend", "hf first", "hf always", "hf never"]


@pytest.fixture(scope="session")
def tokenizer_of(smollm2: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def made(kind: str) -> Tokenizer:
        folder = tmp_path_factory.mktemp("v")
        if kind == "smollm2":
            return smollm2
        if kind in ("sentencepiece", "no prefix"):
            return load_tokenizer(write_sentencepiece(folder / "v.gguf", add_space_prefix=kind == "sentencepiece"))
        if not kind.startswith("hf"):
            splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return load_tokenizer(write_byte_level(folder / "v.gguf", kind, *train_byte_level(splitter)))
        backend = byte_level_backend() if kind in ("hf", "hf composed") else sentencepiece_backend(kind[3:])
        if kind == "hf composed":
            backend.normalizer = normalizers.NFC()
        save(folder, backend, None)
        return load_tokenizer(folder)

    return made


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.one_of(HOSTILE, st.text(max_size=60), st.sampled_from(TEXTS)))
@example(text="\x04" * 1000)
@example(text="\U00050000" * 1000)
@example(text=" " * 1000)
@example(text="\u1fbe\u0308\u0301" * 200)
def test_no_text_has_fewer_tokens_than_its_bytes_say(tokenizer_of: Any, kind: str, text: str) -> None:
    tokenizer: Tokenizer = tokenizer_of(kind)

    assert tokenizer.least_tokens([text]) <= len(tokenizer.encode(text))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_tells_that_a_long_text_is_long(tokenizer_of: Any, kind: str) -> None:
    tokenizer: Tokenizer = tokenizer_of(kind)

    assert tokenizer.least_tokens(["Why is the sky blue? " * 2000]) > 1000


@pytest.mark.parametrize(("text", "share"), [("a ", 0.05), ("7", 0.99), ("|<", 0.05)])
def test_what_hostile_texts_are_made_of_is_known_to_be_many_tokens(smollm2: Tokenizer, text: str, share: float) -> None:
    long = text * (100_000 // len(text))

    assert smollm2.least_tokens([long]) >= share * len(smollm2.encode(long))


def test_control_tokens_count_as_one_each(smollm2: Tokenizer) -> None:
    pieces = smollm2.chat_pieces([{"role": "user", "content": "Hello"}])

    assert sum(isinstance(piece, int) for piece in pieces) <= smollm2.least_tokens(pieces)
    assert smollm2.least_tokens(pieces) <= len(smollm2.encode_pieces(pieces))


def changed(change: Any) -> Backend:
    backend = byte_level_backend()
    change(backend)
    return backend


def drop_digits(backend: Backend) -> None:
    split = pre_tokenizers.Split(Regex(r"\d"), behavior="removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def swallow_space(backend: Backend) -> None:
    backend.add_tokens([AddedToken("<pad>", special=False, normalized=False, lstrip=True)])


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: setattr(backend, "normalizer", normalizers.Strip()),
        lambda backend: setattr(backend, "normalizer", normalizers.NFKC()),
        lambda backend: setattr(backend, "normalizer", normalizers.Replace(Regex("a+"), "a")),
        drop_digits,
        swallow_space,
    ],
)
def test_nothing_is_claimed_where_text_may_be_dropped_or_shortened(tmp_path: Path, change: Any) -> None:
    save(tmp_path, changed(change), None)

    assert load_tokenizer(tmp_path).least_tokens(["a 1 " * 1000]) == 0


def test_nothing_is_claimed_of_byte_fallback_without_all_bytes(tmp_path: Path) -> None:
    pieces, scores, types = sentencepiece_vocabulary()
    lower = [piece.lower() if piece == "<0xAB>" else piece for piece in pieces]
    path = write_sentencepiece(tmp_path / "v.gguf", tokens=lower, scores=scores, token_type=types)

    assert load_tokenizer(path).least_tokens(["hello " * 1000]) == 0


def test_composition_shortens_no_character_by_more_than_is_reckoned_with() -> None:
    """The longest spelling of each character's canonical decomposition, against its composed form."""
    spelling: dict[str, int] = {}
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    changed = [c for c in characters if not unicodedata.is_normalized("NFD", c)]
    for character in changed:
        decomposed = unicodedata.normalize("NFD", character)
        spelling[decomposed] = max(spelling.get(decomposed, 0), len(character.encode()))

    @cache
    def longest(text: str) -> int:
        if not text:
            return 0
        own = max(len(text[0].encode()), spelling.get(text[0], 0)) + longest(text[1:])
        joined = (
            spelling[text[:end]] + longest(text[end:]) for end in range(2, len(text) + 1) if text[:end] in spelling
        )
        return max(own, *joined, 0)

    composed = {unicodedata.normalize("NFC", character) for character in changed}
    assert max(longest(unicodedata.normalize("NFD", c)) / len(c.encode()) for c in composed) < NFC_SHRINKAGE


def test_a_byte_counts_by_the_longest_token_that_has_it() -> None:
    bound = TokenBound(np.frombuffer(b"abaaaaab", np.uint8), np.array([1, 1, 4, 2]))

    assert bound.least("a" * 400) == 99  # 100, less what a sum may be wrong by
    assert bound.least("b" * 400) == 199
    assert bound.least("c" * 400) == 0


def test_a_token_that_no_text_is_spelled_as_counts_for_none_of_its_bytes() -> None:
    bound = byte_level_bound(["a", "b", "aaaa漢", "ab", "\ud800"], [], composed=False)

    assert bound.least("a" * 400) == 199
    assert bound.least("b" * 400) == 199


def test_a_byte_without_a_token_of_its_own_counts_nothing_even_if_longer_tokens_have_it() -> None:
    bound = byte_level_bound(["a", "b", "ab", "ac"], [], composed=False)

    assert bound.least("c" * 400) == 0
    assert bound.least("ab" * 400) == 399
