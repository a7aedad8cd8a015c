"""Hostile inputs find nothing in gateways without keys, with administrators, redaction, rules, hostile servers, proxies
or cores that end."""

import pytest

from tests.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("targets", "inputs"),
    [(("open", "administered", "redacting", "private"), 90), (("hostile",), 110), (("addresses", "proxied"), 120)],
)
def test_two_hundred_hostile_inputs_find_nothing_in_other_gateways(targets: tuple[str, ...], inputs: int) -> None:
    assert found_by_attacks(*targets, inputs=inputs) == ""


def test_an_answer_of_our_own_engine_outlives_its_core() -> None:
    assert found_by_attacks("mortal", inputs=40) == ""
