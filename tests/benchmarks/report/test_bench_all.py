"""`make bench-all` measures what is missing and keeps what is there."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run(folder: Path) -> None:
    stub = folder / "python"
    stub.write_text("#!/bin/sh\necho measured now\n", encoding="utf-8")
    stub.chmod(0o755)
    given = [f"BIN={folder}", f"RESULTS={folder}/results"]
    subprocess.run(["make", "-o", "install", "bench-all", *given], cwd=ROOT, check=True, capture_output=True)


def test_a_second_run_keeps_what_was_measured_and_measures_what_was_removed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    run(tmp_path)
    made = sorted(path.name for path in results.iterdir())
    (results / "step.jsonl").write_text("measured before\n", encoding="utf-8")
    (results / "route.json").unlink()

    run(tmp_path)

    assert made == ["kernels.jsonl", "route.json", "start.jsonl", "step.jsonl"]
    assert (results / "step.jsonl").read_text(encoding="utf-8") == "measured before\n"
    assert (results / "route.json").read_text(encoding="utf-8") == "measured now\n"
