"""The model of follow-ups is fitted to turns that we wrote and to dialogues, always alike, and measured."""

import json
from pathlib import Path

import numpy as np
import pytest

from classifier.errors import ArtefactError, TrainingDataError
from classifier.features.follow_up_model import load_follow_up, rows_of, shipped_follow_up, signs
from classifier.training.fitting.follow_up import (
    Example,
    fit_follow_up,
    measured,
    out_of_fold,
    own_examples,
    predicted,
    read_dialogues,
)
from tests.gateway.in_process_cli import aio

FEW = [
    Example(turn, "what is a monad", "A monoid.", needs)
    for needs, turns in (
        (True, ("why?", "now in Rust", "shorter please", "explain step 2", "and in French?", "another one")),
        (False, ("write a C compiler", "tell me a joke", "who was Gauss?", "prove Rolle's theorem", "thanks", "hello")),
    )
    for turn in turns
]


def row(*said: str, follow_up: bool) -> str:
    roles = ("user", "assistant")
    turns = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return json.dumps({"turns": turns, "follow_up": follow_up})


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(row(one.before, one.answer, one.turn, follow_up=one.needs) + "\n" for one in FEW))
    return path


def test_what_was_fitted_tells_its_rows_apart_and_is_the_same_again_and_from_a_file(tmp_path: Path) -> None:
    model = fit_follow_up(FEW)
    p = predicted(model, FEW)
    assert all((one >= 0.5) == example.needs for one, example in zip(p, FEW, strict=True))
    assert np.array_equal(fit_follow_up(FEW).weights, model.weights)
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_allclose(predicted(load_follow_up(tmp_path / "model.safetensors"), FEW), p, atol=2e-3)


def test_of_each_turn_p_is_found_without_that_turn() -> None:
    twice = [*FEW, *FEW]
    p = out_of_fold(twice)
    assert np.array_equal(p[: len(FEW)], p[len(FEW) :])
    assert measured(twice, p).right < 1.0


def test_the_own_turns_are_many_of_both_kinds_and_drawn_alike_by_a_seed() -> None:
    found = own_examples(3)
    assert found == own_examples(3) != own_examples(4)
    assert min(sum(one.needs for one in found), sum(not one.needs for one in found)) > 3000
    assert not [one for one in found if "{" in one.turn and "}" in one.turn and " => " in one.turn]


def test_without_the_own_turns_it_is_said_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="Train in a checkout"):
        own_examples(0, tmp_path)


def test_the_report_has_bins_errors_and_what_the_constant_reaches() -> None:
    needs = [True, True, False, False]
    report = measured([Example("a", "b", "", one) for one in needs], np.array([0.99, 0.6, 0.4, 0.01]))
    assert (report.right, report.constant, report.both) == (1.0, 0.25, 0.5)
    assert report.brier == pytest.approx((0.01**2 + 0.4**2 + 0.4**2 + 0.01**2) / 4)
    assert [(one.turns, one.needs) for one in report.bins] == [(1, 0.0), (1, 0.0), (1, 1.0), (1, 1.0)]


def test_a_dialogue_needs_two_turns_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row("hi", "hello", follow_up=False))
    with pytest.raises(TrainingDataError, match="line 1"):
        read_dialogues(path)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ArtefactError, match=r"model\.safetensors"):
        load_follow_up(path)


def test_the_command_measures_the_packaged_model(dialogues: Path) -> None:
    ended = aio("classifier", "follow-up", dialogues, "--json")
    assert ended.exit_code == 0, ended.output
    shown = json.loads(ended.output)
    assert shown["rows"] == len(FEW)
    assert shown["right"] == pytest.approx(measured(FEW, predicted(shipped_follow_up(), FEW)).right)
    assert "brier" in aio("classifier", "follow-up", dialogues).output


def test_signs_are_rows_each_once_and_an_empty_turn_has_some() -> None:
    assert rows_of(["a", "a", "b"]) == list(dict.fromkeys(rows_of(["a", "b"])))
    assert signs("", "", "")
