"""The comparison of a fine-tuned encoder's classes with the n-gram model's."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.classifier.encoder import FineTunedClasses, Float, Prompt, Rated, mean_of, read_rows, scored
from classifier.encoders.pooled_transformer import PooledTransformer
from tests.classifier.tiny_checkpoints import tiny_checkpoint

ROWS = [
    Rated(f"{words} number {i}", tier, trap=trap)
    for tier, words, trap in (
        (1, "say hello to", None),
        (2, "summarise the report of", "other_language"),
        (3, "design a cache for", "long_but_easy"),
        (4, "prove the theorem of", None),
    )
    for i in range(4)
]
TEXTS = [row.prompt for row in ROWS]


def classes(*tiers: int) -> Float:
    """P(class) [n, 4] that is nearly sure of each tier."""
    return np.array([[0.97 if tier == k else 0.01 for k in (1, 2, 3, 4)] for tier in tiers], np.float32)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["encoder", *map(str, arguments)])


def written(path: Path, rows: Sequence[msgspec.Struct]) -> Path:
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    return path


def test_scores_tell_apart_classes_ranges_languages_and_traps() -> None:
    truth = classes(*(row.tier for row in ROWS))
    wrong = classes(*(1 if row.trap == "other_language" else row.tier for row in ROWS))
    line = scored("wrong in other languages", ROWS, wrong, truth)
    assert (line.within, line.languages, line.traps) == (0.75, 0.0, 1.0)
    assert line.macro_f1 == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert line.log_loss == pytest.approx(-(0.75 * np.log(0.97) + 0.25 * np.log(0.01)), rel=1e-4)
    assert line.f1_gain[1] < 0
    assert line.within_gain[0] < -0.25 < line.within_gain[1] < 0
    accepted = [msgspec.structs.replace(row, lo=1, hi=4) for row in ROWS]
    assert scored("all accepted", accepted, wrong, truth).within == 1.0


def test_the_mean_of_two_models_is_that_of_their_cumulative_logits() -> None:
    sure = classes(4)
    np.testing.assert_allclose(mean_of(sure, sure), sure, atol=1e-5)
    # P(class <= 1): logits 3.48 and -4.60, mean -0.56; P(class <= 3): 4.60 and -3.48, mean 0.56.
    np.testing.assert_allclose(mean_of(classes(1), sure), [[0.364, 0.136, 0.136, 0.364]], atol=2e-3)


def test_no_encoder_is_trained_on_what_it_classifies_nor_on_its_group() -> None:
    class Noted(FineTunedClasses):
        def __init__(self) -> None:
            self.calls: list[tuple[set[str], set[str]]] = []

        def logits(self, known: Sequence[Rated], unseen: Sequence[Rated], seed: int) -> Float:
            self.calls.append(({row.prompt for row in known}, {row.prompt for row in unseen}))
            return np.array([[row.tier] * 3 for row in unseen], np.float32)

    model = Noted()
    first, *rest = ROWS
    grouped = [msgspec.structs.replace(first, group="a"), *rest]
    others = [Rated("another wording of it", 1, group="a"), Rated("something else", 2)]
    found = model.out_of_fold(grouped, others, folds=3, seed=1)
    assert found[:, 0].tolist() == [row.tier for row in ROWS]
    assert sorted(prompt for _, unseen in model.calls for prompt in unseen) == sorted(TEXTS)
    assert all(not known & unseen for known, unseen in model.calls)
    assert all("another wording of it" not in known for known, unseen in model.calls if first.prompt in unseen)


def test_every_training_begins_with_the_same_parameters_and_the_first_stage_changes_them(tmp_path: Path) -> None:
    model = FineTunedClasses(PooledTransformer.load(tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS)))
    before = model.logits(ROWS, ROWS[:3], seed=1)
    model.logits(ROWS[4:], ROWS[:3], seed=2)
    np.testing.assert_allclose(model.logits(ROWS, ROWS[:3], seed=1), before, atol=1e-4)
    unrated = [Prompt(row.prompt, {"small": float(row.tier == 1)} if row.tier < 3 else {}) for row in ROWS]
    model.begin_with(unrated, classes(*(row.tier for row in ROWS)))
    after = model.logits(ROWS, ROWS[:3], seed=1)
    assert after.shape == (3, 3)
    assert np.abs(after - before).max() > 1e-4


def test_the_command_prints_both_models_and_their_mean_for_each_way_to_train(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS)
    rows, train = written(tmp_path / "rows.jsonl", ROWS), written(tmp_path / "train.jsonl", ROWS[::2])
    unrated = tmp_path / "unrated.jsonl.gz"
    unrated.write_bytes(gzip.compress(written(tmp_path / "plain", [Prompt(text) for text in TEXTS]).read_bytes()))
    ended = run(folder, rows, "--train", train, "--unrated", unrated, "--folds", "2", "--seeds", "1")
    assert ended.exit_code == 0, ended.output
    names = [line[:24].strip() for line in ended.stdout.splitlines()[2:]]
    ways = ("unseen", "2 folds")
    assert names == ["n-gram model", *(f"{model}, {way}" for way in ways for model in ("encoder", "mean of both"))]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "tier": 1}\n{"prompt": "b", "tier": 5}\n')
    ended = run(tmp_path, rows)
    assert ended.exit_code == 1
    assert "rows.jsonl, line 2" in ended.output
    ended = run(tmp_path, written(rows, ROWS))
    assert ended.exit_code == 1
    assert "no weights" in ended.output
    assert read_rows(rows, Rated) == ROWS
