"""`aio adapters train`: from examples to a folder that a tier binds, or to figures and a refusal (SPEC TI-10)."""

import json
import re
from pathlib import Path

import pytest
from click.testing import Result

from quality.distillation.ladder.record import HeldOutLoss, LadderRecipe, LadderRecord
from quality.distillation.train import NamedModel
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
        (("--recorded",), "other", "'other' is no model of the catalogue; its models are: tiny"),
        (("--recorded",), "tiny", "0 examples to train on and 0 to measure with"),
        (("--recorded", "--device", "cuda:99"), "tiny", "--device cuda:99: "),
        (("--recipe", "ladder", "--recorded"), "tiny", "give no --examples, --recorded or --teacher"),
        (("--recipe", "ladder"), "tiny", "tiny reads 256 tokens; the tasks need 1024"),
        (("--recorded", "--steps", "20"), "tiny", "--steps and --rows are of --recipe"),
        (("--recorded", "--from", "/"), "tiny", "--from is of --recipe"),
    ],
)
def test_what_is_missing_is_named(
    options: tuple[str, ...], model: str, why: str, versions: Versions, tmp_path: Path
) -> None:
    done = train(versions, tmp_path / "none", *options, model=model)
    assert done.exit_code != 0
    assert why in done.output


def test_the_ladders_recipe_takes_its_options_and_shows_what_it_learned(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[LadderRecipe, object]] = []

    def trained(base: NamedModel, folder: Path, recipe: LadderRecipe, **options: object) -> LadderRecord:
        asked.append((recipe, options["start"]))
        losses = {"direct": HeldOutLoss(before=2.0, after=0.5), "brief": HeldOutLoss(before=3.0, after=0.25)}
        return LadderRecord(
            base=base.name, base_path=base.path, base_weights="", recipe=recipe, everyday=3, held_out=66,
            held_out_loss=losses, tokens=12_345, seconds=60.0, first_loss=3.0, last_loss=0.5, created_at=0.0,
        )  # fmt: skip

    monkeypatch.setattr("quality.distillation.ladder.train.train_ladder", trained)
    options = ("--recipe", "ladder", "--steps", "50", "--rank", "8", "--rows", "3", "--from", str(tmp_path))
    done = train(versions, tmp_path / "ladder", *options)
    assert done.exit_code == 0, done.output
    assert asked == [(LadderRecipe(steps=50, rank=8, rows=3), tmp_path)]
    assert "12,345 tokens in 50 steps and 60 s" in done.output
    assert re.search(r"brief +3\.0000 +0\.2500", done.output)
