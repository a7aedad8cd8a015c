"""All who use a tokeniser at once have the same one, which is loaded once and freed with the last of them."""

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from inference_core.errors import ModelFileError
from inference_core.tokenization import load_tokenizer as module
from inference_core.tokenization.load_tokenizer import shared_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.vocabularies import train_byte_level, write_byte_level


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_byte_level(tmp_path / "v.gguf", "smollm", *train_byte_level(pre_tokenizers.ByteLevel(False), 300))


def test_threads_that_ask_at_once_get_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    load = module.load_tokenizer

    def noted(path: Path) -> Tokenizer:
        loads.append(path)
        return load(path)

    monkeypatch.setattr(module, "load_tokenizer", noted)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(shared_tokenizer, [path] * 4))

    assert [one is found[0] for one in found] == [True] * 4
    assert loads == [path]


def test_a_file_that_was_replaced_is_loaded_again(path: Path) -> None:
    before = shared_tokenizer(path)
    os.utime(path, (1, 1))

    assert shared_tokenizer(path) is not before


def test_it_is_freed_with_its_last_user(path: Path) -> None:
    users: list[Tokenizer] = [shared_tokenizer(path)]
    kept = weakref.ref(users[0])
    users.clear()
    gc.collect()

    assert kept() is None


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        shared_tokenizer(tmp_path / "none.gguf")
