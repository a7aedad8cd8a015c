"""The upgrade rate: an alarm above 15% of the last 100, never on too little evidence (SPEC QM-04)."""

import pytest

from quality.estimates import UpgradeSettings, upgrade_rate, wilson_interval


def _labels(worse: int, total: int) -> list[bool]:
    return [False] * worse + [True] * (total - worse)


def test_the_first_bad_sample_alone_is_no_alarm() -> None:
    assert not upgrade_rate(_labels(1, 1), UpgradeSettings()).alarm


def test_fifteen_of_a_hundred_is_no_alarm_and_sixteen_is_one() -> None:
    assert not upgrade_rate(_labels(15, 100), UpgradeSettings()).alarm
    assert upgrade_rate(_labels(16, 100), UpgradeSettings()).alarm


def test_a_bad_streak_below_the_minimum_sample_is_no_alarm() -> None:
    assert not upgrade_rate(_labels(49, 49), UpgradeSettings(min_sample=50)).alarm
    assert upgrade_rate(_labels(50, 50), UpgradeSettings(min_sample=50)).alarm


def test_only_the_window_counts_newest_first() -> None:
    rate = upgrade_rate([True] * 100 + [False] * 400, UpgradeSettings())

    assert (rate.needs_upgrade.count, rate.needs_upgrade.total) == (0, 100)


def test_the_reason_gives_the_counts() -> None:
    assert "16 of the last 100" in upgrade_rate(_labels(16, 100), UpgradeSettings()).reason


def test_nothing_observed_says_nothing() -> None:
    nothing = wilson_interval(0, 0)

    assert (nothing.low, nothing.high, nothing.value) == (0.0, 1.0, None)


def test_a_count_above_its_total_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and the total, 3"):
        wilson_interval(4, 3)
