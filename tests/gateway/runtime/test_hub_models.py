"""Which models of a catalogue are downloaded, and by the command line."""

from pathlib import Path

import pytest

from gateway.runtime.core_factory import core_hub_models, hub_models
from tests.gateway.in_process_cli import aio
from tests.inference_core.loaders.model_hub import running_hub
from tiers.catalog.load import load_catalog

CATALOG = """
[[tiers]]
name = "core"
model = "org/in-process:Q4_0"

[[tiers]]
name = "llama"
engine = "llama-server"
model = "org/model"

[[tiers]]
name = "vllm"
engine = "vllm"
model = "org/model"
revision = "v1"

[[tiers]]
name = "own"
engine = "vllm"
model = "{folder}"

[[tiers]]
name = "ollama"
engine = "ollama"
model = "org/model"
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "aio.toml"
    path.write_text(CATALOG.format(folder=tmp_path))
    return path


def test_models_by_id_are_listed_with_the_files_that_their_engines_load(catalog: Path) -> None:
    loaded = load_catalog(str(catalog))
    assert [(str(model), form) for model, form in hub_models(loaded)] == [
        ("org/in-process:Q4_0", "any"),
        ("org/model", "gguf"),
        ("org/model@v1", "folder"),
    ]
    assert core_hub_models(loaded, []) == []


def test_pulling_downloads_every_model_of_the_catalogue(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add("org/in-process", {"m-Q4_0.gguf": b"GGUF"})
        commit = hub.add("org/model", {"m-Q4_K_M.gguf": b"GGUF", "model.safetensors": b"w", "config.json": b"{}"})
        catalog.write_text(catalog.read_text().replace('"v1"', f'"{commit}"'))
        result = aio("models", "pull", "--catalog", catalog)
        assert result.exit_code == 0, result.output
        paths = [line for line in result.output.splitlines() if line.startswith("/")]
        assert [Path(path).name for path in paths] == ["m-Q4_0.gguf", "m-Q4_K_M.gguf", commit]
        again = aio("models", "pull", "org/none")
        assert again.exit_code == 1
        assert "no public repository" in again.output
