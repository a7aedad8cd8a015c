"""Providers of sign-in let no stranger in, a clock that jumps gives no budget, limit or key again, odd verdicts let
nothing pass, and few files are enough for many clients."""

import pytest

from tests.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


def test_answers_of_providers_and_jumps_of_the_clock_find_nothing() -> None:
    assert found_by_attacks("sign-on", "clock", inputs=80) == ""


def test_odd_verdicts_of_guardrails_and_crowds_at_few_files_find_nothing() -> None:
    assert found_by_attacks("guarded", "few files", inputs=160) == ""
