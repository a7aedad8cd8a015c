"""`python -m tests.gateway.attacks` in a short form: about a thousand hostile inputs of most classes find nothing."""

import os
import subprocess
import sys

import pytest

from tests.gateway.attacks.in_process.sitecustomize import FLOOR
from tests.gateway.attacks.runner import STALL_SECONDS, Verdict, judge_lags

pytestmark = pytest.mark.processes


def test_a_thousand_hostile_inputs_find_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.gateway.attacks",
        "--inputs",
        "1000",
        "--without",
        "laptop",
        "--without",
        "shared",
        # Other tests load the machine.
        "--ignore-stalls",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}, timeout=280
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_stall_counts_without_what_the_machine_took() -> None:
    verdict = Verdict("x")
    judge_lags(
        verdict,
        [
            {"lag": 0.5, "machine": 0.45, "stack": "descheduled"},
            {"lag": 0.3, "machine": 0.01, "stack": "regular expression"},
        ],
    )
    assert FLOOR < STALL_SECONDS
    assert verdict.stalls == 1
    assert "regular expression" in verdict.examples[0]
