"""`aio adapters train`: from examples to a folder that a tier binds, or to figures and a refusal (SPEC TI-10)."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.gateway.in_process_cli import aio
from tests.gateway.tiny_versions import Versions
from tests.quality.distillation.tiny_students import questions


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    versions = Versions(tmp_path_factory.mktemp("catalogue"))
    versions.write("old")
    lines = [{"prompt": one.turns[0]["content"], "answer": one.answer} for one in questions(120)]
    (versions.file.parent / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return versions


def train(versions: Versions, folder: Path, *options: str, model: str = "tiny") -> Result:
    files = ["--catalog", str(versions.file), "--data-dir", str(folder.parent), "--cache-dir", str(folder.parent)]
    return aio("adapters", "train", model, folder, *files, "--device", "cpu", "--threads", "1", *options)


def test_examples_become_an_adapter_and_the_line_that_binds_it(versions: Versions, tmp_path: Path) -> None:
    examples = str(versions.file.parent / "questions.jsonl")
    done = train(versions, tmp_path / "compass", "--examples", examples, "--base", "float32", "--epochs", "3")
    assert done.exit_code == 0, done.output
    assert "108 examples from questions.jsonl" in done.output
    assert f'adapter = "{tmp_path / "compass"}"' in done.output
    stored = json.loads((tmp_path / "compass" / "training.json").read_bytes())
    assert stored["outcome"]["after"]["loss"] < stored["outcome"]["before"]["loss"]
    assert f"{stored['outcome']['after']['loss']:.4f}" in done.output
    settings = json.loads((tmp_path / "compass" / "adapter_config.json").read_bytes())
    assert (settings["r"], settings["lora_alpha"], len(settings["target_modules"])) == (16, 32.0, 7)


def test_figures_are_shown_where_nothing_is_written(versions: Versions, tmp_path: Path) -> None:
    examples = str(versions.file.parent / "questions.jsonl")
    done = train(versions, tmp_path / "same", "--examples", examples, "--teacher", "tiny")
    assert done.exit_code == 1
    assert "agreement" in done.output
    assert "the adapter is not better on 12 held-out answers" in done.output
    assert not (tmp_path / "same").exists()


@pytest.mark.parametrize(
    ("options", "model", "why"),
    [
        ((), "tiny", "give either --examples FILE or --recorded"),
        (("--recorded",), "other", "'other' is not a model of the catalogue; its models are: tiny"),
        (("--recorded",), "tiny", "0 examples to train on and 0 to measure with"),
        (("--recorded", "--device", "cuda:99"), "tiny", "--device cuda:99: "),
        (("--recipe", "ladder", "--steps", "522"), "tiny", "`python -m benchmarks ladder MODEL FOLDER` has it"),
        (("--recorded", "--steps", "20"), "tiny", "--steps is gone: it was of the recipe"),
        (("--recorded", "--from", "/"), "tiny", "--from is gone: it was of the recipe"),
    ],
)
def test_what_is_missing_is_named(
    options: tuple[str, ...], model: str, why: str, versions: Versions, tmp_path: Path
) -> None:
    done = train(versions, tmp_path / "none", *options, model=model)
    assert done.exit_code != 0
    assert why in done.output
