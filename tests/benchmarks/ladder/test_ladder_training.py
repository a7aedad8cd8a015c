"""The ladder's recipe: it continues where it was stopped, learns, and writes an adapter with its card."""

import json
import re
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.ladder import packing as batches
from benchmarks.ladder import train
from benchmarks.ladder.packing import ANSWER_OPENING, DETAILED_OPENING
from benchmarks.ladder.record import LadderRecipe
from benchmarks.ladder.train import STATE_FILE, train_ladder
from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.lora.adapter_file import read_adapter
from quality.distillation.train import DistillationError, NamedModel
from tests.inference_core.quantization.tiny_model import write_tiny_model
from tiers.catalog.tier_spec import ChainOfThoughtSpec

RECIPE = LadderRecipe(
    rank=4, steps=8, warmup=2, rows=1, row_tokens=600, everyday_prompts=6, everyday_tokens=8, checkpoint_steps=3,
    base="float32", learning_rate=5e-3,
)  # fmt: skip


class Stopped(Exception):
    """What a test ends a training with."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> NamedModel:
    torch.set_num_threads(1)
    folder = write_tiny_model(tmp_path_factory.mktemp("base") / "model")
    config = json.loads((folder / "config.json").read_text())
    # A token is a byte here.
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return NamedModel(name="tiny", path=str(folder))


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of bytes are long, so all 66 held-out tasks would take most of the time."""
    whole = train.ladder_tasks
    monkeypatch.setattr(train, "ladder_tasks", lambda seed, count, part: whole(seed, count, part)[:12])
    monkeypatch.setattr(train, "LONGEST", 2048)


def run(
    base: NamedModel,
    folder: Path,
    recipe: LadderRecipe = RECIPE,
    stop_at: int | None = None,
    start: Path | None = None,
) -> None:
    def progress(stage: str, share: float) -> None:
        if stage == "training" and stop_at is not None and round(share * recipe.steps) == stop_at:
            raise Stopped

    train_ladder(base, folder, recipe, start=start, cache_dir=folder.parent / "cache", progress=progress)


def test_a_stopped_training_ends_with_the_weights_of_an_undisturbed_one(base: NamedModel, tmp_path: Path) -> None:
    run(base, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(base, tmp_path / "stopped", stop_at=5)
    assert (tmp_path / ".stopped.training" / STATE_FILE).exists()
    run(base, tmp_path / "stopped")
    assert not (tmp_path / ".stopped.training").exists()
    whole, stopped = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "stopped"))
    assert {name: tensor.tolist() for name, tensor in whole.items()} == {
        name: tensor.tolist() for name, tensor in stopped.items()
    }


def test_it_learns_held_out_wordings_in_every_mode_and_says_what_it_learned(base: NamedModel, tmp_path: Path) -> None:
    run(base, tmp_path / "ladder", msgspec.structs.replace(RECIPE, steps=20))
    stored = json.loads((tmp_path / "ladder" / "training.json").read_text())
    assert set(stored["held_out_loss"]) == {"direct", "brief", "detailed"}
    for loss in stored["held_out_loss"].values():
        assert loss["after"] < loss["before"]
    assert stored["tokens"] >= 20 * 600
    adapter = read_adapter(tmp_path / "ladder", read_config(Path(base.path)))
    assert adapter.layers[0]["q_proj"].down.shape[0] == 4
    card = (tmp_path / "ladder" / "README.md").read_text()
    assert f"{stored['held_out_loss']['brief']['after']:.3f}" in card
    for family in ("sums", "letters", "roman"):
        assert family in card
    bound = re.search(r"```toml\n(.*?)```", card, re.DOTALL)
    assert bound is not None
    [tier] = tomllib.loads(bound[1])["tiers"]
    assert (tier["model"], tier["adapter"]) == ("tiny", str(tmp_path / "ladder"))
    policy = msgspec.convert(tier["policy"], ChainOfThoughtSpec)
    assert (policy.instruction, policy.opening) == ("", DETAILED_OPENING)
    assert (policy.end_markers, policy.answer_opening) == ((ANSWER_OPENING,), ANSWER_OPENING)


def test_a_training_from_an_adapter_begins_with_what_that_one_learned(base: NamedModel, tmp_path: Path) -> None:
    run(base, tmp_path / "first", msgspec.structs.replace(RECIPE, steps=20))
    run(base, tmp_path / "second", msgspec.structs.replace(RECIPE, steps=20), start=tmp_path / "first")
    first, second = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("first", "second"))
    assert second["started_from"] == first
    for mode, loss in first["held_out_loss"].items():
        # Files hold bfloat16, so that what was learned is there again but for rounding.
        learned = loss["before"] - loss["after"]
        assert abs(second["held_out_loss"][mode]["before"] - loss["after"]) < 0.2 * learned
    card = (tmp_path / "second" / "README.md").read_text()
    assert f"whose own training had {first['tokens']:,} tokens in 20 steps" in card
    assert (
        "python -m benchmarks ladder tiny FOLDER --steps 20 --rows 1 --rank 4 --learning-rate 0.005 --from EARLIER"
        in card
    )


def test_what_a_training_cannot_begin_at_is_refused(base: NamedModel, tmp_path: Path) -> None:
    run(base, tmp_path / "first", msgspec.structs.replace(RECIPE, steps=20))
    with pytest.raises(DistillationError, match=r"with rank 4 and alpha 32; it must be .* with rank 2"):
        run(base, tmp_path / "second", msgspec.structs.replace(RECIPE, rank=2), start=tmp_path / "first")
    with pytest.raises(DistillationError, match="is no adapter of the recipe"):
        run(base, tmp_path / "second", start=Path(base.path))
    with pytest.raises(Stopped):
        run(base, tmp_path / "second", stop_at=4, start=tmp_path / "first")
    with pytest.raises(DistillationError, match="another recipe, model or start"):
        run(base, tmp_path / "second")


def test_a_quarter_of_the_tokens_is_what_the_base_says_to_everyday_prompts(
    base: NamedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    shares: list[float] = []
    real = batches.Encoder.everyday

    def everyday(self: batches.Encoder, *given: Any, **options: Any) -> batches.Question:
        question = real(self, *given, **options)
        seen.append(question.tokens)
        return question

    monkeypatch.setattr(batches.Encoder, "everyday", everyday)
    source = batches.Source(base.path, [batches.Everyday("Hi!", [5, 6, 7])], msgspec.structs.replace(RECIPE, rows=20))
    for step in range(3):
        seen.clear()
        questions = batches.step_questions(source, step)
        shares.append(sum(seen) / sum(question.tokens for question in questions))
    assert all(0.22 < share < 0.3 for share in shares)


def test_a_process_makes_the_batches_that_are_made_without_one(base: NamedModel) -> None:
    source = batches.Source(base.path, [batches.Everyday("Hi!", [5, 6, 7])], RECIPE)
    with closing(batches.batches(source, 2, 1)) as ahead:
        for there, here in zip(ahead, batches.batches(source, 2, 0), strict=True):
            assert there.tokens == here.tokens
            assert torch.equal(there.batch.targets, here.batch.targets)
            assert torch.equal(there.batch.layout.seen, here.batch.layout.seen)


def test_a_state_of_another_recipe_and_a_folder_that_exists_are_refused(base: NamedModel, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(base, tmp_path / "ladder", stop_at=4)
    with pytest.raises(DistillationError, match="another recipe, model or start"):
        run(base, tmp_path / "ladder", msgspec.structs.replace(RECIPE, steps=9))
    (tmp_path / "ladder").mkdir()
    with pytest.raises(DistillationError, match="exists"):
        run(base, tmp_path / "ladder")


def test_an_adapter_that_learned_nothing_is_not_written(base: NamedModel, tmp_path: Path) -> None:
    with pytest.raises(DistillationError, match="not better on 12 tasks"):
        run(base, tmp_path / "ladder", msgspec.structs.replace(RECIPE, learning_rate=0.0, steps=2))
    assert not (tmp_path / "ladder").exists()
