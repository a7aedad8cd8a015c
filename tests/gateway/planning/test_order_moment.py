"""When the rule with a forecast orders replicas: the length of their start before a season needs them (SPEC AS-03)."""

import math

import msgspec
import pytest

from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.scaling.predictive import (
    DAY_S,
    Observation,
    PredictiveKnobs,
    PredictiveRule,
    ServiceObjectives,
    replicas_for,
)

INTERVAL_S = 900.0
DAYS = 4
PROFILE = msgspec.structs.replace(replica_profile("smollm2-135m-int4-cpu"), prompt_pair_s=0.0, context_token_s=0.0)


def interval(at: float) -> Observation:
    """What came in the interval that ended at `at`: 5 requests a second at midnight and 35 at noon, all answered."""
    requests = round(INTERVAL_S * (20 - 15 * math.cos(2 * math.pi * (at - INTERVAL_S / 2) / DAY_S)))
    return Observation(
        at=at,
        seconds=INTERVAL_S,
        requests=requests,
        prompt_tokens=300 * requests,
        finished=requests,
        output_tokens=60 * requests,
    )


def rule(cold_start_s: float) -> PredictiveRule:
    """Nothing in reserve and no slow scale-down, so that an order is for the forecast need alone."""
    return PredictiveRule(
        PROFILE,
        interval_s=INTERVAL_S,
        cold_start_s=cold_start_s,
        objectives=ServiceObjectives(),
        knobs=PredictiveKnobs(quantile=0.5, down_window_s=0.0),
    )


def replicas_needed(at: float, share: float) -> int:
    """How many replicas serve that share of the load of the interval that ends at `at`, by the rule's own measure, but
    without a forecast."""
    seen, alone = interval(at), rule(0.0)
    for _ in range(3):
        need = alone.need(seen)
    return replicas_for(share * need / PredictiveKnobs().busy)


@pytest.mark.parametrize("cold_start_s", [600.0, 1800.0, 3600.0])
def test_an_order_is_placed_the_length_of_a_start_before_the_season_needs_it(cold_start_s: float) -> None:
    """The rule is asked once per interval, so an order may come one interval sooner, and never later than a forecast
    that is off by one percent makes it."""
    asked, ordered = rule(cold_start_s), dict[float, int]()
    for number in range(1, int(DAYS * DAY_S / INTERVAL_S) + 1):
        at = number * INTERVAL_S
        ordered[at] = asked.desired(interval(at))
    midnight = (DAYS - 1) * DAY_S
    morning = [at for at in ordered if midnight + 0.05 * DAY_S < at < midnight + 0.42 * DAY_S]
    after, error = [at for at in ordered if at > midnight], 0.01
    least, most = ({at - INTERVAL_S: replicas_needed(at, share) for at in after} for share in (1 - error, 1 + error))

    steps = range(ordered[morning[0]] + 1, ordered[morning[-1]] + 1)
    assert len(steps) > 5
    for replicas in steps:
        order = next(at for at in morning if ordered[at] >= replicas)
        soonest, latest = (next(at for at, n in needed.items() if n >= replicas) for needed in (most, least))
        assert latest - order >= cold_start_s
        assert soonest - order <= cold_start_s + INTERVAL_S
