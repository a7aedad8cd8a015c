"""Hostile inputs find nothing in gateways without keys, with administrators, redaction, rules, hostile servers, proxies
or cores that end."""

from pathlib import Path

import pytest

from tests.hostile.running import found_by

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("gateways", "scale"),
    [(("open", "administered", "redacting", "private"), 0.005), (("hostile",), 0.01), (("addresses", "proxied"), 0.08)],
)
def test_two_hundred_hostile_inputs_find_nothing_in_other_gateways(
    gateways: tuple[str, ...], scale: float, tmp_path: Path
) -> None:
    assert found_by(*(f"attacks/{name}/" for name in gateways), scale=scale, folder=tmp_path) == ""


def test_an_answer_of_our_own_engine_outlives_its_core(tmp_path: Path) -> None:
    assert found_by("attacks/mortal/", scale=0.04, folder=tmp_path) == ""
