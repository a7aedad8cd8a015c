"""`python -m benchmarks ladder`: its options, and what it shows."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.ladder.record import HeldOutLoss, LadderRecipe, LadderRecord
from quality.distillation.train import NamedModel
from tests.gateway.tiny_versions import Versions


def test_the_recipe_takes_its_options_and_shows_what_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[LadderRecipe, object]] = []

    def trained(base: NamedModel, folder: Path, recipe: LadderRecipe, **options: object) -> LadderRecord:
        asked.append((recipe, options["start"]))
        losses = {"direct": HeldOutLoss(before=2.0, after=0.5), "brief": HeldOutLoss(before=3.0, after=0.25)}
        return LadderRecord(
            base=base.name, base_path=base.path, base_weights="", recipe=recipe, everyday=3, held_out=66,
            held_out_loss=losses, tokens=12_345, seconds=60.0, first_loss=3.0, last_loss=0.5, created_at=0.0,
        )  # fmt: skip

    monkeypatch.setattr("benchmarks.ladder.train.train_ladder", trained)
    versions = Versions(tmp_path)
    versions.write("old")
    files = ("--catalog", str(versions.file), "--cache-dir", str(tmp_path), "--device", "cpu", "--threads", "1")
    options = ("--steps", "50", "--rank", "8", "--rows", "3", "--from", str(tmp_path))
    done = CliRunner().invoke(main, ["ladder", "tiny", str(tmp_path / "ladder"), *files, *options])
    assert done.exit_code == 0, done.output
    assert asked == [(LadderRecipe(steps=50, rank=8, rows=3), tmp_path)]
    assert "12,345 tokens in 50 steps and 60 s" in done.output
    assert re.search(r"brief +3\.0000 +0\.2500", done.output)
