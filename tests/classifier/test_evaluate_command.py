"""The whole evaluation on generated rows: tables, unseen domains, files of other collections, and the model card."""

import gzip
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from synthetic_outcomes import DOMAINS, generated_rows

from classifier.errors import TrainingDataError
from classifier.training import evaluate_command as command
from classifier.training.card import card_text, places, read_evaluation, template, with_refits, write_evaluation
from classifier.training.dataset import FILE, OutcomeRow
from classifier.training.evaluate_command import EvaluateOptions, EvaluateOutcome, evaluate_command
from classifier.training.evaluation import Evaluation
from classifier.training.feature_costs import feature_costs
from classifier.training.learning_curve import learning_curve
from classifier.training.predictors import Entry
from classifier.training.registered import DOMAIN_LABEL, PREDICTORS, SHIPPED
from classifier.training.row_files import read_rows
from classifier.training.simple_predictors import DomainMean, Random
from classifier.training.stored_predictions import save_predictions
from classifier.training.train import Candidate
from gateway.cli import main

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "measurements" / "classifier.json"
QUICK = ("random", DOMAIN_LABEL, "other models' outcomes")


def write_rows(path: Path, rows: list[OutcomeRow]) -> Path:
    path.write_bytes(gzip.compress(b"\n".join(map(msgspec.json.encode, rows))))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_rows(folder / FILE, generated_rows(1500))
    return folder


@pytest.fixture(scope="module")
def outcome(tiny: Candidate, folder: Path) -> EvaluateOutcome:
    options = EvaluateOptions(hold=(DOMAINS[0],), keep=folder / "kept", draws=40)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "feature_costs", lambda model, prompts, train: feature_costs(model, prompts[:30]))
        patched.setattr(command, "PREDICTORS", tuple(entry for entry in PREDICTORS if entry.name in QUICK))
        return evaluate_command(tiny.folder, data=folder, options=options)


def test_every_predictor_stands_in_the_same_tables_on_the_same_rows(outcome: EvaluateOutcome) -> None:
    found = outcome.evaluation.test.probabilities
    assert {m.predictor for m in found} == {SHIPPED, *QUICK}
    assert {m.rows for m in found if (m.subset, m.head) == ("llmrouter", "correct_1")} == {200}
    ours = next(m for m in found if (m.subset, m.head, m.predictor) == ("llmrouter", "correct_1", SHIPPED))
    assert ours.auc_within is not None
    assert ours.auc_within.low > 0.6
    assert outcome.refusals == []


def test_held_out_domains_are_measured_by_everything_fitted_without_them(outcome: EvaluateOutcome) -> None:
    unseen = outcome.evaluation.unseen
    assert unseen is not None
    assert unseen.rows == sum(row.domain == DOMAINS[0] for row in generated_rows(1500))
    assert {m.predictor for m in unseen.tables.probabilities} == {SHIPPED, *QUICK}
    assert f"llmrouter: {DOMAINS[0]}" in {m.subset for m in unseen.tables.probabilities}
    assert {f.way for f in unseen.fallback} == {"never", "novel prompts to the safe tier", "always"}
    always = next(f for f in unseen.fallback if f.way == "always" and f.label == "no_worse")
    assert (always.quality.value, always.cost_share) == (1.0, 1.0)


def test_the_memory_learns_an_unseen_domains_rate_from_a_hundred_labels(outcome: EvaluateOutcome) -> None:
    assert outcome.evaluation.unseen is not None
    (row,) = [m for m in outcome.evaluation.unseen.labelled if m.head == "correct_2"]
    assert row.domain == DOMAINS[0]
    # The domain's words are those of the others, so the model knows more than a rate.
    assert row.difference.high < 0


def test_the_learning_curve_ends_with_all_labels() -> None:
    rows = generated_rows(1500)
    parts = [[row for row in rows if row.split == split] for split in ("train", "valid", "test")]
    found = learning_curve(DomainMean, *parts)
    assert [p.labels for p in found if p.subset == "llmrouter"] == [300, 900]
    assert all(p.auc_within.value == 0.5 for p in found)


def test_the_text_has_every_table_and_the_json_no_prompt(outcome: EvaluateOutcome) -> None:
    for title in ("AUC pooled / within domain", "Domains never trained on", "CPU time", "Novelty"):
        assert title in outcome.text
    assert b"What is the" not in outcome.json
    assert msgspec.json.decode(outcome.json, type=Evaluation) == outcome.evaluation


def test_kept_predictions_give_the_same_tables_again(
    outcome: EvaluateOutcome, tiny: Candidate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Random):
        def fit(self, train: object, valid: object) -> None:
            raise AssertionError("fitted again")

    monkeypatch.setattr(command, "PREDICTORS", (Entry("random", f"{__name__}:Forgetful"),))
    monkeypatch.setitem(globals(), "Forgetful", Forgetful)
    monkeypatch.setattr(command, "feature_costs", lambda model, prompts, train: [])
    again = evaluate_command(tiny.folder, data=folder, options=EvaluateOptions(keep=folder / "kept", draws=40))
    rows = [
        [m for m in e.test.probabilities if m.predictor == "random"] for e in (outcome.evaluation, again.evaluation)
    ]
    for one, two in zip(*rows, strict=True):
        assert one.auc == two.auc


def test_a_file_of_another_collection_borrows_training_rows_and_joins_predictions_from_files(
    tiny: Candidate, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIO_DATA", str(folder))
    strange = [
        msgspec.structs.replace(
            row,
            id=f"s{i}",
            source="elsewhere",
            metric="judge",
            prompt=f"{row.prompt} Now?",
            outcomes={"a": 0.0, "b": 1.0},
        )
        if i % 2
        else msgspec.structs.replace(
            row,
            id=f"s{i}",
            source="elsewhere",
            metric="judge",
            prompt=f"{row.prompt} Now?",
            outcomes={"a": 1.0, "b": 1.0},
        )
        for i, row in enumerate(r for r in generated_rows(400, seed=3) if r.split == "test")
    ]
    file = write_rows(tmp_path / "strange.jsonl.gz", strange)
    rows = read_rows(file, "test")
    assert rows.borrowed
    assert len(rows.train) == 900
    stored = Random()
    stored.fit(rows.train, rows.valid)
    wanted = [*rows.valid, *rows.measured]
    save_predictions(tmp_path / "mine.npz", "from a file", wanted, stored.predict(wanted))
    options = EvaluateOptions(baselines=False, draws=40, predictions=(tmp_path / "mine.npz",))
    found = evaluate_command(tiny.folder, data=file, options=options)
    assert {(m.subset, m.predictor) for m in found.evaluation.test.probabilities} == {
        ("elsewhere", SHIPPED),
        ("elsewhere", DOMAIN_LABEL),
        ("elsewhere", "from a file"),
    }


def test_data_without_the_split_or_of_another_format_are_refused(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl.gz", [r for r in generated_rows(20) if r.split == "train"])
    with pytest.raises(TrainingDataError, match="no row of split 'test'"):
        read_rows(rows, "test")
    (tmp_path / "bad.jsonl").write_text("{}")
    with pytest.raises(TrainingDataError, match=r"bad\.jsonl"):
        read_rows(tmp_path / "bad.jsonl", "test")


def test_the_card_has_a_place_for_every_table_and_fills_each(outcome: EvaluateOutcome, tmp_path: Path) -> None:
    write_evaluation(outcome.evaluation, tmp_path / "e.json")
    page = card_text(read_evaluation(tmp_path / "e.json"))
    assert places(page) == []
    assert page.count("Not measured") == 1  # the learning curve was not asked for
    assert "shipped artefact" in page
    assert len(places(template())) == len(set(places(template())))


def test_a_measurement_of_another_format_is_refused(outcome: EvaluateOutcome, tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="does not exist"):
        read_evaluation(tmp_path / "none.json")
    old = msgspec.structs.replace(outcome.evaluation, format=0)
    write_evaluation(old, tmp_path / "old.json")
    with pytest.raises(TrainingDataError, match="format 0"):
        read_evaluation(tmp_path / "old.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(TrainingDataError, match="measure again"):
        read_evaluation(tmp_path / "bad.json")


def test_the_card_command_draws_plots_and_writes_the_page(outcome: EvaluateOutcome, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    write_evaluation(outcome.evaluation, tmp_path / "e.json")
    given = ["--stored", tmp_path / "e.json", "--page", tmp_path / "page.md", "--images", tmp_path / "img"]
    done = CliRunner().invoke(main, ["classifier", "card", *map(str, given)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.md").read_text() == card_text(outcome.evaluation)
    drawn = sorted((tmp_path / "img").iterdir())
    assert [p.name for p in drawn] == [
        "classifier-cost-quality.png",
        "classifier-reliability.png",
    ]
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 5_000 < path.stat().st_size < 150_000


def test_the_model_card_shows_the_stored_measurement() -> None:
    if not STORED.is_file():
        pytest.skip("needs docs/measurements/classifier.json: `make classifier-card` makes it")
    assert (ROOT / "docs" / "classifier.md").read_text(encoding="utf-8") == card_text(read_evaluation(STORED))


def test_refits_of_an_earlier_measurement_are_named_on_the_page(outcome: EvaluateOutcome) -> None:
    newer = msgspec.structs.replace(outcome.evaluation, version="v1-newer", unseen=None)
    joined = with_refits(newer, outcome.evaluation)
    assert joined.unseen == outcome.evaluation.unseen
    assert f"an earlier recipe, that of `{outcome.version}`" in card_text(joined)
