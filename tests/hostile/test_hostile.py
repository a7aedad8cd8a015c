"""The runner of hostile inputs: it chooses targets by name, ends what hangs or dies, and says how to run it again."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hostile import __main__ as command
from tests.hostile import running
from tests.hostile.report import Report, markdown, save, total
from tests.hostile.target import FuzzTarget, Limits, Target, target_at, targets_like


def test_a_name_that_is_no_target_is_refused() -> None:
    wrong = ("tiers.wires.nothing", "tiers.nothing.a", "nothing", "tiers.wires.wire")
    for path in (*(f"fuzz/{name}" for name in wrong), "attacks/open/sign-in", "sign-in"):
        with pytest.raises(KeyError, match=path):
            target_at(path)


def test_targets_are_chosen_by_parts_and_patterns_of_their_paths() -> None:
    def chosen(*patterns: str, without: tuple[str, ...] = ()) -> list[str]:
        return [target.path for target in targets_like(*patterns, without=without)]

    assert chosen("*/sign-in") == ["attacks/keyed/sign-in"]
    assert chosen("/sign-in", without=("shared/",)) == ["attacks/keyed/sign-in"]
    assert sorted(chosen("tiers.audio", "/few files/")) == [
        "attacks/few files/crowds at a process of 40 files", "fuzz/tiers.audio.durations",
    ]  # fmt: skip
    assert chosen("nothing") == []


def test_a_run_has_so_many_inputs_of_each_target_and_ends_with_no_findings(tmp_path: Path) -> None:
    targets = [target_at("fuzz/tiers.wires.retry_after"), target_at("fuzz/tiers.streams.server_sent_events")]

    reports = running.run(targets, Limits(inputs=30), tmp_path, jobs=2)

    assert [(report.name, report.inputs, report.findings) for report in reports] == [
        (target.path, 30, {}) for target in targets
    ]


@pytest.mark.parametrize(
    ("program", "ended"),
    [("import os; os.abort()", "ended with -6"), ("import time; time.sleep(600)", "ended with -15")],
    ids=["dies", "hangs"],
)
def test_a_process_that_dies_or_hangs_is_a_finding_with_its_last_input(
    program: str, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen

    def replaced(command: list[str], **more: object) -> object:
        folder = Path(command[4])
        save([Report("fuzz/tiers.wires.retry_after", inputs=7)], folder)
        (folder / "current").write_bytes(b"\x03\0\0\0zoo and what was there before")
        return started([sys.executable, "-c", program], **more)  # type: ignore[call-overload]

    monkeypatch.setattr(running.subprocess, "Popen", replaced)
    monkeypatch.setattr(running, "HANG_SECONDS", 1)
    monkeypatch.setattr(running, "_STARTING_SECONDS", 1)
    target = FuzzTarget("tiers.wires.retry_after", lambda data: None, ())

    (report,) = running.run([target], Limits(seconds=0.1), tmp_path)

    assert (report.inputs, report.findings) == (7, {"process": 1})
    assert ended in report.examples[0]
    kept = tmp_path / target.path / "crash-death"
    assert kept.read_bytes() == b"zoo"
    assert report.examples[1].endswith(f"replay {target.path} {kept}")


def test_a_total_has_the_sums_and_the_worst() -> None:
    reports = [Report("a", 1, 0.5, 9), Report("b", 2, 0.1, 2**20)]
    reports[0].note("stall", "x")

    whole = total("all", reports)

    assert (whole.inputs, whole.slowest, whole.grown_bytes) == (3, 0.5, 2**20)
    assert (whole.found(), whole.found(["stall"])) == (1, 0)
    assert markdown(reports).splitlines()[-1] == "| all | 3 | 500 | 1 | 1 stall |"


def test_the_command_says_what_it_found_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Report("fuzz/tiers.wires.retry_after", inputs=5)
    asked: list[tuple[list[str], Limits]] = []

    def run(targets: Sequence[Target], limits: Limits, *_: object) -> list[Report]:
        asked.append(([target.path for target in targets], limits))
        return [found]

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)

    order = ["run", found.name, "--inputs", "5", "--seed", "7"]
    assert command.main(order) == 0
    assert asked == [([found.name], Limits(inputs=5, seed=7))]
    found.note("process", "ended")
    assert command.main(order) == 1
    assert command.main([*order, "--ignore", "process"]) == 0
    with pytest.raises(SystemExit) as refused:
        command.main(["run", "nothing"])
    assert refused.value.code == 2
