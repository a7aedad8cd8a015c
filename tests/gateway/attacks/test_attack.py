"""Hostile inputs of most classes find nothing in a gateway with tenants; one after another, then many at once."""

import pytest

from tests.gateway.attacks.in_process.sitecustomize import FLOOR
from tests.gateway.attacks.runner import STALL_SECONDS, Verdict, judge_lags
from tests.gateway.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


def test_eight_hundred_hostile_inputs_find_nothing_where_callers_have_keys() -> None:
    assert found_by_attacks("keyed", inputs=800) == ""


def test_a_stall_counts_without_what_the_machine_took() -> None:
    verdict = Verdict("x")
    judge_lags(
        verdict,
        [
            {"lag": 0.5, "machine": 0.45, "doing": "descheduled"},
            {"lag": 0.3, "machine": 0.01, "doing": "regular expression"},
        ],
    )
    assert FLOOR < STALL_SECONDS
    assert verdict.stalls == 1
    assert "regular expression" in verdict.examples[0]
