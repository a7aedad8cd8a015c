"""Damaged GGUF files are refused with the reason; intact ones read as the `gguf` package reads them."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, constants
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format import gguf_header
from inference_core.loaders.gguf_format.gguf_checkpoint import GGUFCheckpoint
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, StringArray
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "é", "<|x|>"],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_gguf(path, decoder_weights(), matrix_kind="Q4_1", tokenizer=TOKENIZER)


def test_constants_are_those_of_the_gguf_package() -> None:
    assert gguf_header.GGUF_MAGIC == constants.GGUF_MAGIC
    assert {kind.name: kind.value for kind in gguf_header.ValueType} == {
        kind.name: kind.value for kind in constants.GGUFValueType
    }
    assert {
        kind.value: (kind.name, *sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()
    } == gguf_header.TENSOR_KINDS


def test_metadata_and_directory_equal_those_of_the_gguf_package(model: Path) -> None:
    header, reader = GGUFHeader(model), GGUFReader(model)

    assert set(header.metadata) == {name for name in reader.fields if not name.startswith("GGUF.")}
    for name, value in header.metadata.items():
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        assert (list(plain) if isinstance(plain, StringArray) else plain) == reader.fields[name].contents()
    assert {t.name: (t.tensor_type.name, t.data_offset, t.n_bytes) for t in reader.tensors} == {
        t.name: (t.kind, t.offset, t.nbytes) for t in header.tensors.values()
    }


def test_string_arrays_are_sequences(model: Path) -> None:
    tokens = GGUFHeader(model).metadata["tokenizer.ggml.tokens"]

    assert isinstance(tokens, StringArray)
    assert (len(tokens), tokens[1], tokens[-1], tokens[:2]) == (3, "é", "<|x|>", ["a", "é"])


@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(
    model: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = model.read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    broken = tmp_path_factory.mktemp("cut") / "cut.gguf"
    broken.write_bytes(content[:cut])

    with pytest.raises(ModelFileError, match=str(broken)):
        GGUFCheckpoint(broken)


@given(data=st.data())
def test_damage_in_the_header_never_surfaces_as_anything_but_a_model_file_error(
    model: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(model.read_bytes())
    end = min(tensor.offset for tensor in GGUFHeader(model).tensors.values())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    broken = tmp_path_factory.mktemp("bits") / "bits.gguf"
    broken.write_bytes(content)

    try:
        checkpoint = GGUFCheckpoint(broken)
    except ModelFileError:
        return
    assert all(tensor.data.size for tensor in checkpoint.tensors.values())


def test_a_truncated_file_is_refused_with_the_arithmetic(model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    last = max(GGUFHeader(model).tensors.values(), key=lambda tensor: tensor.offset)
    broken = tmp_path / "short.gguf"
    broken.write_bytes(content[: last.offset + 10])

    with pytest.raises(ModelFileError) as error:
        GGUFHeader(broken)

    assert f"tensor '{last.name}'" in str(error.value)
    assert f"ends at byte {last.offset + last.nbytes}" in str(error.value)
    assert f"the file has {last.offset + 10} bytes" in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(60), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "at most 200000 and 100000 are read"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "at most 200000 and 100000 are read"),
    ],
)
def test_what_is_no_gguf_file_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelFileError, match=reason):
        GGUFHeader(path)


def _directory(name: bytes, dimensions: list[int], kind: int, offset: int, count: int = 1) -> bytes:
    row = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dimensions))
    row += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset)
    return b"GGUF" + struct.pack("<IQQ", 3, count, 0) + row * count + bytes(256)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_directory(b"w", [0, 4], 0, 0), "impossible shape"),
        (_directory(b"w", [2**62, 2**62], 0, 0), "does not fit in the file"),
        (_directory(b"w", [4], 0, 2**63), "does not fit in the file"),
        (_directory(b"w", [33], 3, 0), "not a multiple of Q4_1's 32"),
        (_directory(b"w", [4], 999, 0), "unknown kind 999"),
        (_directory(b"w", [1] * 5, 0, 0), "5 dimensions"),
        (_directory(b"w", [4], 0, 0, count=2), "occurs twice"),
    ],
)
def test_an_impossible_tensor_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelFileError, match=reason) as error:
        GGUFHeader(path)
    assert "tensor 'w'" in str(error.value)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    rows = b"".join(
        struct.pack("<Q", 1) + name + struct.pack("<IQIQ", 1, 16, 0, offset) for name, offset in ((b"w", 32), (b"v", 0))
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + rows + bytes(256))

    with pytest.raises(ModelFileError, match="the bytes of tensors 'v' and 'w' overlap"):
        GGUFHeader(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        GGUFHeader(tmp_path / "none.gguf")
