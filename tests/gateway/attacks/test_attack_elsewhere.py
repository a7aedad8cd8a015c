"""Hostile inputs find nothing in gateways without keys, with administrators, redaction, rules or hostile servers."""

import pytest

from tests.gateway.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


def test_two_hundred_hostile_inputs_find_nothing_in_other_gateways() -> None:
    assert found_by_attacks("open", "administered", "redacting", "private", "hostile", inputs=200) == ""
