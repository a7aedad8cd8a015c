"""What each trigger of a retraining costs in false alarms and in delay (SPEC QM-04)."""

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.classifier.alarms import Steady, change, steady


def test_at_the_sources_own_target_the_share_alarms_falsely_and_the_sequential_test_does_not() -> None:
    # 14% worse is within the rule's 15%, and what the classifier predicts.
    found = {rule: steady(rule, 0.14, runs=5, answers=1000, seed=0) for rule in ("evidence", "share")}

    assert found["evidence"].alarms == 0
    assert found["evidence"].answers_per_alarm is None
    assert found["share"].alarmed == 5
    assert found["share"].answers_per_alarm == pytest.approx(5000 / found["share"].alarms)
    assert found["share"].answers_per_alarm < 200


@pytest.mark.parametrize("rule", ["evidence", "share"])
def test_both_notice_a_great_rise(rule: str) -> None:
    found = change(rule, 0.02, 0.6, runs=5, answers=300, seed=0)
    assert (found.missed, found.early) == (0, 0)
    assert found.delay is not None
    assert found.delay < 40


def test_a_rise_that_stays_below_the_threshold_is_noticed_by_the_sequential_test_sooner() -> None:
    found = {rule: change(rule, 0.01, 0.1, runs=5, answers=5000, seed=0) for rule in ("evidence", "share")}
    assert found["evidence"].missed == 0
    assert (found["evidence"].delay or 0) < (found["share"].delay or float("inf"))


def test_the_command_prints_both_rules_for_each_case() -> None:
    order = ["alarms", "--runs", "2", "--answers", "300", "--rate", "0.05", "--rise", "0.05", "0.5"]
    lines = CliRunner().invoke(main, order).output.splitlines()
    objects = CliRunner().invoke(main, [*order, "--json"]).output
    assert lines[0] == "2 runs of 300 verdicts; a change comes after 500"
    assert [line.split()[0] for line in lines[1:]] == ["evidence", "share"] * 2
    first = msgspec.json.decode(objects, type=list[dict[str, object]])[0]
    assert msgspec.convert(first, Steady).rate == 0.05
