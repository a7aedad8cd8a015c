"""What is counted of a semantic cache, and what its guards refuse."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from classifier.artefact import default_artefact, load_artefact
from classifier.outcome_model import OutcomeModel
from gateway.cache.semantic_study import GUARDS, PromptPair, guards_pass, read_pairs, semantic_study
from gateway.cli.bench_semantic_cache import semantic_cache

REWORDED = PromptPair(
    "same", "A juggler can juggle 16 balls, and half are blue.", "A juggler has 16 balls; half are blue."
)
RACE = PromptPair(
    "race", "You overtake the second person. Where are you?", "You overtake the last person. Where are you?"
)


@pytest.fixture(scope="module")
def model() -> OutcomeModel:
    return load_artefact(default_artefact())


@pytest.mark.parametrize(
    ("guard", "a", "b"),
    [
        ("numbers", "Add 15 and 3 apples.", "Add 15 and 4 apples."),
        ("numbers", RACE.a, RACE.b),
        ("numbers", "Divide 6 by 3.", "Divide 3 by 6."),
        ("negations", "Is this allowed here?", "Is this not allowed here?"),
        ("negations", "Why do cats purr?", "Why don’t cats purr?"),
        ("names and quotations", "I want a poem about Paris.", "I want a poem about Rome."),
        ("names and quotations", 'Translate "the red house".', 'Translate "the blue house".'),
        ("question words", "When did it end?", "Why did it end?"),
        ("length", "Write a poem.", "Write a poem that has as many lines as a sonnet has."),
    ],
)
def test_a_guard_refuses_prompts_that_differ_in_what_it_looks_at(guard: str, a: str, b: str) -> None:
    assert not GUARDS[guard](a, b)
    assert not guards_pass(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (REWORDED.a, REWORDED.b),
        ("Say “hello there” to Ann.", 'Say "hello there" to Ann.'),
        ("Sort 3 lists.  Fast.", "Sort 3 lists.\nFast."),
    ],
)
def test_the_guards_let_rewordings_pass(a: str, b: str) -> None:
    assert guards_pass(a, b)


def test_right_and_false_hits_are_counted_apart(model: OutcomeModel) -> None:
    study = semantic_study(model, [REWORDED, RACE], {"race"}, thresholds=[0.5, 1.01])
    low, high = study.thresholds
    assert (low.same.count, low.same_guarded.count, low.same.total) == (1, 1, 1)
    assert (low.different.count, low.different_guarded.count, low.different.total) == (1, 0, 1)
    assert (high.same.count, high.different.count, high.others.total) == (0, 0, 0)


def test_each_prompt_is_set_beside_the_nearest_other_one(model: OutcomeModel) -> None:
    study = semantic_study(model, [], (), [RACE.a, RACE.b, "Sorting integers with Python"], thresholds=[0.8])
    (row,) = study.thresholds
    assert (row.others.count, row.others_guarded.count, row.others.total) == (2, 0, 3)


def test_equal_prompts_are_left_to_the_exact_cache(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(msgspec.json.Encoder().encode_lines([REWORDED, PromptPair("equal", "Hi", "Hi")]))
    assert read_pairs(file) == [REWORDED]


def test_an_id_that_no_pair_has_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(msgspec.json.Encoder().encode_lines([REWORDED]))
    found = CliRunner().invoke(semantic_cache, ["--pairs", str(file), "--different", "typo"])
    assert found.exit_code == 2
    assert "typo" in found.output
