"""The HorizontalPodAutoscaler's rule: the documentation's examples, tolerance, limits and the window."""

import msgspec
import pytest

from tests.gateway.planning.scaling.hpa import (
    FleetObservation,
    HpaBehaviour,
    HpaRule,
    by_in_flight,
    by_utilisation,
    hpa_replicas,
)

QUIET = FleetObservation(
    at=0, seconds=15, requests=0, prompt_tokens=0, finished=0, output_tokens=0, replicas=4, ready=4, in_flight=0, busy=0
)


def seen(**fields: float) -> FleetObservation:
    return msgspec.structs.replace(QUIET, **fields)


@pytest.mark.parametrize(
    ("current", "metric", "target", "wanted"),
    [
        # The documentation: 200m against 100m doubles, 50m against 100m halves.
        (3, 200, 100, 6),
        (4, 50, 100, 2),
        # Its formula rounds up, and does nothing within 10 % of the target.
        (3, 50, 100, 2),
        (5, 130, 100, 7),
        (5, 110, 100, 5),
        (5, 90, 100, 5),
        (5, 111, 100, 6),
        # Two pods of 1,000m against 200m become ten.
        (2, 1000, 200, 10),
    ],
)
def test_published_examples(current, metric, target, wanted):
    assert hpa_replicas(current, metric / target) == wanted


def test_at_most_double_or_four_more_in_an_interval():
    assert by_in_flight(1.0).desired(seen(in_flight=400)) == 8
    assert by_in_flight(1.0).desired(seen(in_flight=400, replicas=10, ready=10)) == 20
    assert by_in_flight(1.0, HpaBehaviour(up_pods=None, up_share=None)).desired(seen(in_flight=400)) == 400


def test_replicas_that_start_are_not_ordered_twice():
    rule = by_in_flight(1.0)
    assert rule.desired(seen(in_flight=8)) == 8
    assert rule.desired(seen(at=15, in_flight=8, replicas=8, ready=4)) == 8


def test_scaling_down_waits_for_the_window():
    rule = HpaRule(lambda observation: observation.busy / 0.7)
    assert rule.desired(seen(at=0, busy=0.7)) == 4
    assert rule.desired(seen(at=300, busy=0.1)) == 4
    assert rule.desired(seen(at=315, busy=0.1)) == 1


def test_the_sources_utilisation_target_is_seventy_percent():
    rule = by_utilisation()
    assert rule.desired(seen(busy=0.72)) == 4
    assert rule.desired(seen(busy=0.91)) == 6
