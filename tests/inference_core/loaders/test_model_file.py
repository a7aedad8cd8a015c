"""Files of models are regular files of a bounded size, whatever else has their names."""

import os
import struct
from pathlib import Path

import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format import gguf_header
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader
from inference_core.loaders.huggingface import safetensors_file
from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
from inference_core.loaders.model_file import MAX_TENSORS, file_fingerprint, map_model_file, read_model_file
from inference_core.loaders.open_checkpoint import open_checkpoint
from tests.inference_core.quantization.tiny_model import write_tiny_model

KINDS = ("pipe", "device", "folder")


def replace(path: Path, kind: str) -> Path:
    """Put something that is no regular file in the place of `path`."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path, kind: str) -> None:
    path = replace(tmp_path / "config.json", kind)
    for read in (lambda: read_model_file(path, 100), lambda: map_model_file(path), lambda: file_fingerprint(tmp_path)):
        with pytest.raises(ModelFileError, match="not a regular file"):
            read()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_folder_with_such_a_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_tiny_model(tmp_path / "model")
    replace(folder / name, kind)
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_checkpoint(folder)


def test_a_link_to_a_regular_file_is_read_as_hugging_face_caches_have_them(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "config.json").symlink_to("blob")
    assert read_model_file(tmp_path / "config.json", 2) == b"{}"


def test_a_file_of_more_bytes_than_its_kind_has_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(ModelFileError, match="at most 100 are read"):
        read_model_file(path, 100)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_model_file(tmp_path / "config.json", 1)


def test_more_tensors_than_any_model_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "MAX_TENSORS", 1)
    with pytest.raises(ModelFileError, match="tensors; at most 1 are read"):
        SafetensorsFile(write_tiny_model(tmp_path / "model") / "model.safetensors")
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<IIQQ", gguf_header.GGUF_MAGIC, 3, MAX_TENSORS + 1, 0))
    with pytest.raises(ModelFileError, match="at most 200000"):
        GGUFHeader(path)


def test_more_texts_than_any_vocabulary_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_STRINGS", 10)
    path = tmp_path / "m.gguf"
    texts = struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 11) + struct.pack("<Q", 0) * 11
    path.write_bytes(struct.pack("<IIQQ", gguf_header.GGUF_MAGIC, 3, 0, 1) + texts)
    with pytest.raises(ModelFileError, match="more than 10 texts"):
        GGUFHeader(path)
