"""The benchmark of routing decisions times each of their stages, and decides as the router does."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.commands.gateway.route import TimedClassifier
from classifier.features.routing_input import routing_input_of_text
from gateway.inference.routing.classifier_versions import ActiveClassifier


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_route_bench_times_every_stage_of_decisions_with_or_without_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIO_DATA", str(tmp_path))
    options = ("route", "--prompts", "5", "--tokens", "100", "--data-dir", str(tmp_path))
    shown = json.loads(run(*options, "--json").output)
    assert (shown["prompts"], shown["source"]) == (5, "generated prompts")
    stages = [stage["stage"] for stage in shown["stages"]]
    assert stages == ["input", "words", "features", "encoder", "classes", "service", "policy"]
    for stage in (shown["decision"], *shown["stages"]):
        assert 0 <= stage["cpu_ms"]["p50"] <= stage["cpu_ms"]["p90"] <= stage["cpu_ms"]["p99"]
    assert "generated prompts of 100 tokens" in run(*options).output


def test_the_route_bench_steps_predict_what_the_classifier_predicts(tmp_path: Path) -> None:
    classifier = ActiveClassifier(tmp_path, "")
    classifier.load()
    given = routing_input_of_text("Explain why the sky is blue, step by step.")
    timed = TimedClassifier(classifier)
    timed.watch.start()
    assert timed.read(given).prediction == classifier.predict(given)
