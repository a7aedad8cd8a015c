"""Hostile inputs of most classes find nothing in a gateway with tenants; one after another, then many at once."""

from pathlib import Path
from typing import Any

import pytest

from tests.attacks import attacking
from tests.attacks.attacking import MOST_GROWTH, STALL_SECONDS, judge_lags, run_class
from tests.attacks.in_process.sitecustomize import FLOOR
from tests.hostile.report import Report
from tests.hostile.running import found_by
from tests.hostile.target import AttackClass, Limits

pytestmark = pytest.mark.processes


def test_eight_hundred_hostile_inputs_find_nothing_where_callers_have_keys(tmp_path: Path) -> None:
    assert found_by("attacks/keyed/", scale=0.033, folder=tmp_path) == ""


def test_a_stall_counts_without_what_the_machine_took() -> None:
    report = Report("x")
    judge_lags(
        report,
        [
            {"lag": 0.5, "machine": 0.45, "doing": "descheduled"},
            {"lag": 0.3, "machine": 0.01, "doing": "regular expression"},
        ],
    )
    assert FLOOR < STALL_SECONDS
    assert report.findings == {"stall": 1}
    assert "regular expression" in report.examples[0]


@pytest.mark.parametrize(
    ("growths", "clean", "attacks"), [([1], True, 1), ([9, 9, 1], True, 3), ([9, 9, 9, 9, 1], False, 4)]
)
def test_a_pool_may_fill_in_several_attacks_and_a_leak_grows_in_the_last_one_too(
    growths: list[int], clean: bool, attacks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(growths)

    def attacked(*_: Any) -> Report:
        return Report("x", inputs=10, grown_bytes=next(left) * MOST_GROWTH // 2)

    monkeypatch.setattr(attacking, "_attacked", attacked)
    never: Any = None
    found = run_class(AttackClass("x", never, "keyed", 10), never, Limits())
    assert (found.found() == 0, found.inputs) == (clean, 10 * attacks)
