"""Every fuzz target reads its seeds and a few hundred mutations of them; what once failed does not fail again."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.engines import mutate_for
from tests.fuzz.mutations import json_mutated, mutated, stretched
from tests.fuzz.target import Target, fuzz_target, target_called, targets_like
from tests.fuzz.trial import ROOT, Trial

# `make fuzz` runs each target for minutes; here a count, not a time, so that every run has the same inputs.
EXECUTIONS = 120
# Fewer where processes are started, pages rendered or models loaded for each input; more for many fields.
COUNTS = {
    "inference_core.grammars.compilation": 15,
    "gateway.requests.headers": 20,
    "gateway.sockets.frames": 40,
    "inference_core.model_files.served_weights": 40,
    "inference_core.model_files.gguf": 80,
    "inference_core.model_files.gguf_fields": 200,
    "inference_core.model_files.folder_fields": 300,
}


@pytest.mark.parametrize("target", targets_like(), ids=lambda target: target.name)
def test_no_mutation_of_a_seed_does_what_the_parser_does_not_document(target: Target) -> None:
    trial = Trial(target)

    mutate_for(trial, executions=COUNTS.get(target.name, EXECUTIONS), seed=1)

    shown = [f"{finding.cause}: {finding.data!r}\n{finding.detail}" for finding in trial.seen.findings.values()]
    assert not shown, "\n".join(shown)


@fuzz_target([b"good", b"bad"])
def fragile(data: bytes) -> str:
    """Fails for every input with a z, is slow for every input with an s."""
    assert b"z" not in data, "a z"
    if b"s" in data:
        sum(range(5_000_000))
    return "read"


def test_a_failing_input_is_found_once_per_cause_and_made_shorter() -> None:
    trial = Trial(fragile)

    for data in (b"a", b"aaazaaa", b"zz", b"zoo"):
        trial(data)

    (finding,) = trial.seen.findings.values()
    assert finding.data == b"z"
    assert "AssertionError" in finding.cause
    assert trial.seen.executions == 4


def test_an_input_that_takes_longer_than_its_target_allows_is_a_finding() -> None:
    trial = Trial(Target(fragile.name, fragile.run, (b"a",), (), None, 0.001, 64, 100))

    trial(b"s")

    assert list(trial.seen.findings) == ["slow"]


def test_a_failing_input_is_kept_with_the_command_that_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(Target("tiers.wires.retry_after", fragile.run, (b"a",), (), None, 1.0, 64, 100), tmp_path)

    trial(b"aazaa")

    (kept,) = (path for path in tmp_path.glob("crash-*") if not path.suffix)
    assert kept.read_bytes() == b"z"
    printed = capsys.readouterr().out
    assert f"replay tiers.wires.retry_after {kept}" in printed
    command = printed.partition("replay: ")[2].split()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "passes" in done.stdout) == (0, True), done.stderr


def test_equal_seeds_of_random_numbers_make_equal_mutations() -> None:
    made = [
        [mutated(b'{"a": 12}', [b"other"], [b"word"], 64, random), json_mutated(b'{"a": 12}', random)]
        for random in (Random(7), Random(7))
    ]

    assert made[0] == made[1]
    assert len(stretched(b"(", 1000, Random(1))) == 1000


def test_a_name_that_is_no_target_is_refused() -> None:
    for name in ("tiers.wires.nothing", "tiers.nothing.a", "nothing", "tiers.wires.wire"):
        with pytest.raises(KeyError, match="no fuzz target"):
            target_called(name)


def test_every_target_is_found_by_its_name() -> None:
    for target in targets_like():
        assert target_called(target.name) is target
