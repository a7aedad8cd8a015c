"""Content hashes: equal content, equal hash; nothing is read twice."""

import os
from pathlib import Path

import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders import model_file
from inference_core.loaders.model_file import file_fingerprint


def test_the_fingerprint_depends_on_content_not_on_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"x" * 3_000_000)
    (tmp_path / "c").write_bytes(b"x" * 2_999_999 + b"y")

    a, b, c = (file_fingerprint(tmp_path / name) for name in "abc")

    assert a == b
    assert a != c
    assert len(a) == 32


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "model", tmp_path / "cache"
    file.write_bytes(b"weights")
    first = file_fingerprint(file, cache)
    monkeypatch.setattr(model_file, "_read_digest", lambda _: pytest.fail("read again"))

    assert file_fingerprint(file, cache) == first


def test_a_changed_file_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    file, cache = tmp_path / "model", tmp_path / "cache"
    file.write_bytes(b"weights")
    first = file_fingerprint(file, cache)
    file.write_bytes(b"weighty")
    os.utime(file, ns=(0, 0))

    assert file_fingerprint(file, cache) == file_fingerprint(file) != first


def test_a_replaced_file_with_the_same_times_is_read_again(tmp_path: Path) -> None:
    file, other, cache = tmp_path / "model", tmp_path / "other", tmp_path / "cache"
    file.write_bytes(b"weights")
    other.write_bytes(b"weighty")
    for path in (file, other):
        os.utime(path, ns=(1, 1))
    first = file_fingerprint(file, cache)
    other.replace(file)

    assert file_fingerprint(file, cache) != first


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    file, cache = tmp_path / "model", tmp_path / "cache"
    file.write_bytes(b"weights")
    first = file_fingerprint(file, cache)
    (memo,) = (cache / "fingerprints").iterdir()
    memo.write_bytes(b"{")

    assert file_fingerprint(file, cache) == first


def test_an_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    file, blocked = tmp_path / "model", tmp_path / "blocked"
    file.write_bytes(b"weights")
    blocked.write_bytes(b"a file where the folder should be")

    assert file_fingerprint(file, blocked) == file_fingerprint(file)


def test_a_folders_fingerprint_covers_names_and_contents_of_model_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    first = file_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("not part of the model")
    assert file_fingerprint(tmp_path) == first

    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    second = file_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{ }")

    assert len({first, second, file_fingerprint(tmp_path)}) == 3


def test_a_missing_file_is_a_model_file_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        file_fingerprint(tmp_path / "none")
