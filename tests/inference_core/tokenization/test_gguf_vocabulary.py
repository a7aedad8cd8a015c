"""Every pre-tokeniser kind and both vocabulary types, against transformers' tokenisers and SentencePiece's rule."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers import GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.loaders.gguf_format.gguf_header import TokenType
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.sample_texts import TEXTS
from tests.inference_core.tokenization.vocabularies import (
    sentencepiece_vocabulary,
    train_byte_level,
    write_byte_level,
    write_sentencepiece,
    write_vocabulary,
)


def tiktoken_like(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    """Llama 3's pipeline from transformers' own pattern, put around another tokeniser's model."""
    reference = Qwen2Tokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    backend = reference.backend_tokenizer
    backend.normalizer = None
    split = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.model.ignore_merges = True
    return reference


def cl100k_like(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    """As `tiktoken_like`, without words that no merges lead to."""
    reference = tiktoken_like(tokens, merges)
    reference.backend_tokenizer.model.ignore_merges = False
    return reference


def from_class(kind: Any) -> Any:
    return lambda tokens, merges: kind(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)


def o200k_like(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    """gpt-oss's pipeline, from the pattern of its tokenizer.json."""
    reference = tiktoken_like(tokens, merges)
    backend = reference.backend_tokenizer
    pattern = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.model.ignore_merges = False
    return reference


REFERENCES = {
    "gpt-2": from_class(GPT2Tokenizer),
    "default": from_class(GPT2Tokenizer),
    "qwen2": from_class(Qwen2Tokenizer),
    "llama-bpe": tiktoken_like,
    "dbrx": cl100k_like,
    "gpt-4o": o200k_like,
}


@pytest.fixture(scope="module")
def trained() -> tuple[list[str], list[tuple[str, str]]]:
    # Trained on whole lines, so that merges cross every boundary a pre-tokeniser may draw, and so tell them apart.
    return train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


@pytest.fixture(scope="module", params=sorted(REFERENCES))
def pair(
    request: pytest.FixtureRequest, trained: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    path = write_byte_level(tmp_path_factory.mktemp("v") / "v.gguf", request.param, *trained)
    return load_tokenizer(path), REFERENCES[request.param](*trained)


def test_byte_level_kinds_encode_as_transformers_does(pair: tuple[Tokenizer, Any]) -> None:
    ours, reference = pair
    for text in TEXTS:
        expected = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == expected, text


@given(text=st.text(alphabet=st.sampled_from("ab '’sS1/٣½ \n\r\t.!é漢😀_"), max_size=30))
def test_boundaries_of_words_are_drawn_as_transformers_draws_them(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, reference = pair

    assert ours.encode(text) == reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("pre", ["smollm", "refact"])
def test_smollm_and_granite_keep_every_digit_apart(trained: Any, tmp_path: Path, pre: str) -> None:
    tokenizer = load_tokenizer(write_byte_level(tmp_path / "v.gguf", pre, *trained))

    pieces = [tokenizer.token_bytes(i).decode() for i in tokenizer.encode("in 2024 1000000")]

    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("20241000000")


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("dbrx", False), ("qwen2", False)])
def test_only_llama3_takes_a_known_word_whole_when_no_merges_lead_to_it(
    trained: Any, tmp_path: Path, pre: str, whole: bool
) -> None:
    tokens, merges = trained
    path = write_byte_level(tmp_path / "v.gguf", pre, [*tokens, "zqzqz"], merges)

    assert (load_tokenizer(path).encode("zqzqz") == [len(tokens)]) == whole


def test_the_begin_token_is_added_where_the_file_asks_for_it(trained: Any, tmp_path: Path) -> None:
    def first(pre: str, **extra: Any) -> int:
        path = write_byte_level(tmp_path / f"{pre}{len(extra)}.gguf", pre, *trained, **extra)
        return load_tokenizer(path).encode("a", add_special_tokens=True)[0]

    assert first("llama-bpe") == 0
    assert first("qwen2") != 0
    assert first("qwen2", add_bos_token=True) == 0


def naive_sentencepiece(text: str) -> list[int]:
    """SentencePiece BPE as its paper says: join the neighbours whose union scores best, leftmost first, until none."""
    pieces, scores, types = sentencepiece_vocabulary()
    index = {piece: i for i, piece in enumerate(pieces) if types[i] == TokenType.NORMAL}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [left + right for left, right in pairwise(symbols)]
        joins = [(-scores[index[union]], i) for i, union in enumerate(unions) if union in index]
        if not joins:
            break
        _, at = min(joins)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [index[symbol]] if symbol in index else [3 + byte for byte in symbol.encode()]
    return ids


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_sentencepiece(tmp_path_factory.mktemp("spm") / "v.gguf"))


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_vocabularies_follow_its_rule(sentencepiece: Tokenizer, text: str) -> None:
    assert sentencepiece.encode(text) == naive_sentencepiece(text)


@given(text=st.text(alphabet=st.sampled_from("aeortls  .,n你😀é\n0<>|_")))
def test_sentencepiece_follows_its_rule_on_random_text(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode(text)

    assert ids == naive_sentencepiece(text)
    assert sentencepiece.decode(ids) == (" " + text if text else "")


def test_sentencepiece_encodes_as_transformers_does(sentencepiece: Tokenizer) -> None:
    pieces, scores, _ = sentencepiece_vocabulary()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = generate_merges(vocabulary, dict(zip(pieces, scores, strict=True)))
    reference = LlamaTokenizer(vocab=vocabulary, merges=merges)

    # Its `Metaspace` puts no space before a text that begins with one; SentencePiece and older tokenizer.json files do.
    for text in (text for text in TEXTS if not text.startswith(" ")):
        expected = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert sentencepiece.encode(text) == expected, text


def test_sentencepiece_bytes_are_exact(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.token_bytes(3 + 0x0A) == b"\n"
    assert sentencepiece.token_bytes(3 + 0xF0) == b"\xf0"
    assert sentencepiece.encode("a", add_special_tokens=True)[0] == sentencepiece.bos_token_id == 1
    assert sentencepiece.decode([1, 2]) == ""


def test_a_vocabulary_without_a_chat_template_cannot_chat(trained: Any, tmp_path: Path) -> None:
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": trained[0], "merges": [" ".join(p) for p in trained[1]]}
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "v.gguf", keys, chat_template=None))

    with pytest.raises(InvalidRequestError, match="has no chat template") as error:
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "bert"}, "tokeniser 'bert' is not supported"),
        (
            {"pre": "deepseek-coder"},
            "pre-tokeniser 'deepseek-coder' is not supported; supported are smollm, refact, starcoder, llama-bpe",
        ),
        ({"tokens": None}, r"lacks the list 'tokenizer\.ggml\.tokens'"),
        ({"merges": None}, r"lacks the list 'tokenizer\.ggml\.merges'"),
        ({"merges": ["no such"]}, "do not fit together"),
        ({"token_type": [1, 1]}, "token types"),
        ({"tokens": ["a", "a"], "token_type": None}, "1 tokens occur twice"),
        ({"model": "llama"}, r"'tokenizer\.ggml\.scores' must hold"),
        ({"model": "llama", "tokens": ["a"], "scores": [0.0], "token_type": [1]}, "byte fallback needs 256"),
        ({"model": "llama", "remove_extra_whitespaces": True}, "drop extra white space"),
    ],
)
def test_tokenisers_that_cannot_be_exact_are_refused(
    trained: Any, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = write_byte_level(tmp_path / "v.gguf", "gpt-2", *trained, **changes)

    with pytest.raises(ModelFileError, match=reason):
        load_tokenizer(path)


def test_a_piece_too_long_to_be_split_every_way_is_refused(tmp_path: Path) -> None:
    pieces, scores, types = sentencepiece_vocabulary()
    pieces[-1] = "x" * 5000

    with pytest.raises(ModelFileError, match="a token of 5000 characters"):
        load_tokenizer(write_sentencepiece(tmp_path / "m.gguf", tokens=pieces, scores=scores, token_type=types))
