"""Tokeniser files that would make their library work without end are refused; its panics are errors of a request."""

import json
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.tokenization import gguf_vocabulary, hf_vocabulary
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer_limits import _problem
from tests.inference_core.quantization.tiny_model import write_tiny_model


def changed(tmp_path: Path, **keys: Any) -> Path:
    """A model whose tokenizer.json has other keys."""
    folder = write_tiny_model(tmp_path / "model")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    return folder


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def added(count: int, text: str = "<{}>", special: bool = True) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return [{"id": 257 + n, "content": text.format(n), "special": special, **flags} for n in range(count)]


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 40}}, "characters of one"),
        ({"normalizer": REPLACE | {"pattern": {"Regex": "."}, "content": "b" * 100}}, "characters of one"),
        ({"pre_tokenizer": split("(a|a)*b")}, "time without end"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(x+x+)+y")]}}, "time without end"),
        ({"normalizer": REPLACE | {"pattern": {"Regex": "(.*)*#"}}}, "time without end"),
        ({"added_tokens": added(80_001, special=False)}, "added tokens"),
        ({"added_tokens": added(20_001)}, "special tokens"),
        ({"added_tokens": added(3, "a" * 400_000 + "{}")}, "added tokens"),
    ],
)
def test_a_tokeniser_of_unbounded_work_is_refused(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        load_tokenizer(changed(tmp_path, **keys))


def test_added_tokens_of_the_settings_count_too(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    _list_in_settings(folder, ["<{}>"] * 80_001)
    with pytest.raises(ModelFileError, match="added tokens"):
        load_tokenizer(folder)


def _list_in_settings(folder: Path, texts: list[str], special: tuple[bool, ...] = (False,)) -> None:
    listed = {
        str(257 + n): {"content": text.format(n), "special": special[n % len(special)]} for n, text in enumerate(texts)
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))


def test_the_codebook_of_a_speech_model_is_read_also_where_both_files_list_it(tmp_path: Path) -> None:
    folder = changed(tmp_path, added_tokens=added(65_792, "<|s_{}|>", special=False))
    _list_in_settings(folder, ["<|s_{}|>"] * 65_792)
    assert load_tokenizer(folder).encode("<|s_65791|>") == [257 + 65_791]


def test_tokens_that_only_the_settings_list_are_added_at_once(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    _list_in_settings(folder, ["<|s_{}|>"] * 30_000)
    assert load_tokenizer(folder).encode("<|s_29999|>") == [257 + 29_999]
    _list_in_settings(folder, ["<|s_{}|>"] * 3000, special=(True, False))
    with pytest.raises(ModelFileError, match="take turns too often"):
        load_tokenizer(folder)
    _list_in_settings(folder, ["<|s_{}|>"] * 300, special=(True, False))
    assert load_tokenizer(folder).encode("<|s_299|>") == [257 + 299]


@pytest.mark.parametrize(
    "pattern",
    [
        gguf_vocabulary._GPT4_SPLIT % 3,
        gguf_vocabulary._GPT4O_SPLIT,
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)",
        r"(?:\r?\n)+(?!\r?\n)",
        r"(?<=\d)(?=(?:\d{3})+(?!\d))",
    ],
)
def test_patterns_of_real_models_are_read(pattern: str) -> None:
    assert _problem(pattern) == ""


@pytest.mark.parametrize("pattern", [r"(a*)*", r"(?:a|b)+", "a*a*a*a*b", r"(a)\1", r"(?<n>a)\k<n>", r"(\w+\s?){2,}x"])
def test_patterns_with_more_than_one_way_to_match_a_repetition_are_not(pattern: str) -> None:
    assert _problem(pattern)


def test_a_panic_of_the_library_is_an_error_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_vocabulary, "require_bounded", lambda *_: None)
    tokenizer = load_tokenizer(changed(tmp_path, pre_tokenizer=split("(x+x+)+y")))
    assert tokenizer.encode("hello")
    for encode in (tokenizer.encode, tokenizer.encode_continued):
        with pytest.raises(InvalidRequestError, match="cannot read this text"):
            encode("x" * 40)
