"""Providers of sign-in let no stranger in, a clock that jumps gives no budget, limit or key again, odd verdicts let
nothing pass, and few files are enough for many clients."""

from pathlib import Path

import pytest

from tests.hostile.running import found_by

pytestmark = pytest.mark.processes


def test_answers_of_providers_and_jumps_of_the_clock_find_nothing(tmp_path: Path) -> None:
    assert found_by("attacks/sign-on/", "attacks/clock/", scale=0.053, folder=tmp_path) == ""


def test_odd_verdicts_of_guardrails_and_crowds_at_few_files_find_nothing(tmp_path: Path) -> None:
    assert found_by("attacks/guarded/", "attacks/few files/", scale=0.16, folder=tmp_path) == ""
