"""A tokeniser that takes too much memory or time is refused by a child process, and each file is read by one once."""

import json
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import ModelFileError
from inference_core.tokenization import tokenizer_trial
from inference_core.tokenization.hf_vocabulary import read_hf_vocabulary
from inference_core.tokenization.tokenizer_trial import require_small
from tests.inference_core.quantization.tiny_model import write_tiny_model

FILE = Path("tokenizer.json")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def unigram(*pieces: str) -> bytes:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], *([piece, -1] for piece in pieces)]}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()


def test_a_tokeniser_that_takes_gigabytes_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = tokenizer_trial._passes

    def a_32nd(library: str, program: str, content: bytes, most_bytes: int, most_seconds: int) -> bool:
        return passes(library, program, content, most_bytes // 32, most_seconds)

    monkeypatch.setattr(tokenizer_trial, "_passes", a_32nd)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is too large: reading it takes more than 2 GB"):
        require_small(FILE, unigram(*(f"{number:020}"[::-1] for number in range(30_000))))
    require_small(FILE, unigram("ab"))


def test_a_file_that_passed_is_not_read_by_a_child_again(monkeypatch: pytest.MonkeyPatch) -> None:
    require_small(FILE, unigram("ab"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a second child was started")

    monkeypatch.setattr("inference_core.tokenization.tokenizer_trial.subprocess.run", refuse)
    require_small(FILE, unigram("ab"))
    with pytest.raises(AssertionError, match="second child"):
        require_small(FILE, unigram("abc"))


def test_what_the_library_cannot_read_is_refused_in_its_own_words(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(settings))

    with pytest.raises(ModelFileError, match="is not a tokeniser that `tokenizers` can read"):
        read_hf_vocabulary(folder)


def test_a_cache_that_cannot_be_written_costs_a_child_and_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("no folder")
    children = []
    passes = tokenizer_trial._passes

    def counted(*arguments: Any) -> bool:
        children.append(arguments)
        return passes(*arguments)

    monkeypatch.setattr(tokenizer_trial, "_passes", counted)

    for _ in range(2):
        require_small(FILE, unigram("ab"))
    assert len(children) == 2
