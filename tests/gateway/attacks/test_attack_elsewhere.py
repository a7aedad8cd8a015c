"""Hostile inputs find nothing in gateways without keys, with administrators, redaction, rules, sign-in providers, clocks that jump or
hostile servers."""

import pytest

from tests.gateway.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


def test_over_two_hundred_hostile_inputs_find_nothing_in_other_gateways() -> None:
    assert (
        found_by_attacks("open", "administered", "redacting", "private", "hostile", "sign-on", "clock", inputs=240)
        == ""
    )
