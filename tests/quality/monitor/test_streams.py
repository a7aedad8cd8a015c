"""The streams of a verdict, and the predicted rate after a judge's errors."""

import random

import pytest

from quality.monitor.detectors import ShiftDetector, ShiftSettings
from quality.monitor.watches import VIEWS, changed_tier, changes_for, judged_worse, streams_of

SIMPLE, EXPERT = [0.9, 0.1, 0.0, 0.0], [0.0, 0.1, 0.2, 0.7]


def test_a_verdict_counts_with_its_tier_and_with_its_class_if_that_is_known() -> None:
    assert streams_of(2, 0.5, EXPERT) == ["tier 2, familiar prompts", "EXPERT prompts"]
    assert streams_of(2, 0.99, None) == ["tier 2, unfamiliar prompts"]


def test_what_a_probe_says_of_a_tier_that_did_not_serve_counts_with_the_tier_alone() -> None:
    assert streams_of(2, 0.5, EXPERT, served=False) == ["tier 2, familiar prompts"]


@pytest.mark.parametrize(
    ("stream", "tier"),
    [(streams_of(2, 0.5, EXPERT)[0], 2), (streams_of(2, 0.99, EXPERT)[0], None), (streams_of(2, 0.5, EXPERT)[1], None)],
)
def test_only_familiar_prompts_tell_that_the_tier_has_changed_and_not_what_is_asked(
    stream: str, tier: int | None
) -> None:
    assert changed_tier(stream) == tier


@pytest.mark.parametrize(("reliability", "expected"), [(None, 0.3), (1.0, 0.3), (0.8, 0.38), (0.5, 0.5)])
def test_a_judge_who_errs_is_expected_to_say_worse_more_often(reliability: float | None, expected: float) -> None:
    assert judged_worse(0.3, reliability) == pytest.approx(expected)


def test_one_kind_of_prompts_alarms_though_the_tier_as_a_whole_hardly_changes() -> None:
    detector = ShiftDetector(ShiftSettings(), VIEWS)
    draw, alarms = random.Random(7), []
    for number in range(1000):
        bad = number % 5 == 0
        worse = draw.random() < (0.75 if bad else 0.2)
        streams, predicted = streams_of(1, 0.1, EXPERT if bad else SIMPLE), 0.3 if bad else 0.2
        alarms += [(number, one) for one in streams if detector.observe(one, worse, predicted) is not None]

    assert alarms[0][1] == "EXPERT prompts"
    assert alarms[0][0] < 5 * 60


def test_from_a_novelty_of_095_on_a_prompt_is_unfamiliar() -> None:
    assert [streams_of(1, novelty, None)[0] for novelty in (0.949, 0.95)] == [
        "tier 1, familiar prompts", "tier 1, unfamiliar prompts"
    ]  # fmt: skip
    assert changed_tier("tier 12, familiar prompts, and more") is None
    assert changed_tier("tier 12, familiar prompts") == 12


def test_a_tenant_has_the_later_of_its_own_changes_and_everyones() -> None:
    changes = {None: {1: 10.0, 2: 20.0}, "t": {2: 15.0, 3: 30.0}, "": {1: 40.0}}
    assert changes_for(changes, "t") == {1: 10.0, 2: 20.0, 3: 30.0}
    assert changes_for(changes, "other") == {1: 10.0, 2: 20.0}
    assert changes_for(changes, "") == {1: 40.0, 2: 20.0}
    assert changes_for({"t": {1: 5.0}}, "t") == {1: 5.0}
