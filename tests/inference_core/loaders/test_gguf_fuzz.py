"""No GGUF file, however damaged, does anything worse than raise ModelFileError."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference_core.loaders.bounded_memory import bounded_memory
from tests.inference_core.loaders.byte_damage import damaged_bytes
from tests.inference_core.loaders.exercise import opens, tokenises
from tests.inference_core.loaders.gguf_bytes import GGUFBytes, damaged, intact
from tests.inference_core.loaders.test_gguf_architectures import written as export_model
from tests.inference_core.tokenization.vocabularies import write_sentencepiece

INTACT = intact()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.unlink(missing_ok=True)  # A file that is mapped must not change.
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_sentencepiece(tmp_path_factory.mktemp("spm") / "vocabulary.gguf").read_bytes()


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_1", "Q8_0"])
def test_the_file_that_is_damaged_below_is_intact(folder: Path, kind: str) -> None:
    path = written(folder, intact(kind).encoded())

    assert opens(path)
    assert tokenises(path)


@given(file=damaged())
def test_any_field_may_hold_anything(folder: Path, file: GGUFBytes) -> None:
    path = written(folder, file.encoded())
    with bounded_memory():
        opens(path)
        tokenises(path)


@given(content=damaged_bytes(INTACT.encoded(), header=2048))
def test_any_bytes_may_be_cut_changed_repeated_or_lost(folder: Path, content: bytes) -> None:
    path = written(folder, content)
    with bounded_memory():
        opens(path)
        tokenises(path)


@pytest.fixture(scope="module", params=["mixtral", "phi4-mini", "gemma3-listed"])
def architecture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("architecture")
    export_model(request.param, path, lambda _: "Q8_0")
    return (path / "m.gguf").read_bytes()


@settings(max_examples=max(30, settings().max_examples // 4))
@given(data=st.data())
def test_files_of_other_architectures_may_hold_anything(folder: Path, architecture: bytes, data: st.DataObject) -> None:
    path = written(folder, data.draw(damaged_bytes(architecture, header=1200)))
    with bounded_memory():
        opens(path)


@settings(max_examples=max(20, settings().max_examples // 20))
@given(data=st.data())
def test_a_sentencepiece_vocabulary_may_hold_anything(folder: Path, sentencepiece: bytes, data: st.DataObject) -> None:
    path = written(folder, data.draw(damaged_bytes(sentencepiece, header=len(sentencepiece))))
    with bounded_memory():
        tokenises(path)
