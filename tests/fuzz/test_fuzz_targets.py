"""Every fuzz target reads its seeds and a few hundred mutations of them; what once failed does not fail again."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.engines import mutate_for
from tests.fuzz.mutations import json_mutated, mutated, stretched
from tests.fuzz.trial import ROOT, Trial
from tests.hostile.target import FuzzTarget, Target, targets_like


@pytest.mark.parametrize("target", targets_like("fuzz/"), ids=lambda target: target.name)
def test_no_mutation_of_a_seed_does_what_the_parser_does_not_document(target: Target) -> None:
    assert isinstance(target, FuzzTarget)
    trial = Trial(target)

    # `make fuzz` runs each target for minutes; here a number, so that every run has the same inputs.
    mutate_for(trial, executions=target.inputs // 10, seed=1)

    shown = [f"{finding.cause}: {finding.data!r}\n{finding.detail}" for finding in trial.findings.values()]
    assert not shown, "\n".join(shown)


def fragile(data: bytes) -> str:
    """Fails for every input with a z, is slow for every input with an s."""
    assert b"z" not in data, "a z"
    if b"s" in data:
        sum(range(5_000_000))
    return "read"


def test_a_failing_input_is_found_once_per_cause_and_made_shorter() -> None:
    trial = Trial(FuzzTarget("fragile", fragile, (b"good", b"bad")))

    for data in (b"a", b"aaazaaa", b"zz", b"zoo"):
        trial(data)

    (finding,) = trial.findings.values()
    assert finding.data == b"z"
    assert "AssertionError" in finding.cause
    assert trial.report.inputs == 4
    assert list(trial.report.findings.values()) == [3]


def test_an_input_that_takes_longer_than_its_target_allows_is_a_finding() -> None:
    trial = Trial(FuzzTarget("fragile", fragile, (b"a",), seconds=0.001))

    trial(b"s")

    assert list(trial.findings) == ["slow"]


def test_a_failing_input_is_kept_with_the_command_that_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(FuzzTarget("tiers.wires.retry_after", fragile, (b"a",)), tmp_path)

    trial(b"aazaa")

    (kept,) = (path for path in tmp_path.glob("crash-*") if not path.suffix)
    assert kept.read_bytes() == b"z"
    printed = capsys.readouterr().out
    assert f"replay fuzz/tiers.wires.retry_after {kept}" in printed
    command = printed.partition("again: ")[2].split()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "passes" in done.stdout) == (0, True), done.stderr


def test_equal_seeds_of_random_numbers_make_equal_mutations() -> None:
    made = [
        [mutated(b'{"a": 12}', [b"other"], [b"word"], 64, random), json_mutated(b'{"a": 12}', random)]
        for random in (Random(7), Random(7))
    ]

    assert made[0] == made[1]
    assert len(stretched(b"(", 1000, Random(1))) == 1000
