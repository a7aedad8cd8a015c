"""The rule of the Kubernetes HorizontalPodAutoscaler, as its documentation states it (autoscaling/v2, 1.32)."""

import math
from collections.abc import Callable

import msgspec

from gateway.planning.scaling.predictive import Observation, SlowDown


class FleetObservation(Observation, frozen=True, kw_only=True):
    """What a cluster sees of a fleet, besides what the gateways count."""

    replicas: int
    """Replicas that are ordered and not draining."""
    ready: int
    """How many of them serve."""
    in_flight: int
    """Requests queued and running."""
    busy: float
    """Mean share of time that ready replicas computed."""


class HpaBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The documented defaults. Adds at most `up_pods` or `up_share` per interval, whichever is more; None is no
    limit."""

    tolerance: float = 0.1
    down_window_s: float = 300.0
    up_pods: int | None = 4
    up_share: float | None = 1.0


def hpa_replicas(current: int, ratio: float, tolerance: float = 0.1) -> int:
    """Return ceil(current x ratio) for `ratio` = metric / target; `current` while the ratio is within `tolerance` of
    1."""
    if _close(ratio, tolerance):
        return current
    return math.ceil(current * ratio - 1e-9)


def _close(ratio: float, tolerance: float) -> bool:
    return abs(ratio - 1) <= tolerance + 1e-9


class HpaRule:
    """Scales by one metric: an observation's `ratio` is the mean over ready replicas divided by the target.

    Unready replicas count as 0 when scaling up, so that they are not ordered twice; if that reverses the direction,
    nothing happens.
    """

    def __init__(self, ratio: Callable[[FleetObservation], float], behaviour: HpaBehaviour | None = None) -> None:
        self._ratio = ratio
        self._behaviour = behaviour or HpaBehaviour()
        self._slow_down = SlowDown(self._behaviour.down_window_s)

    def desired(self, seen: FleetObservation) -> int:
        return self._slow_down.steady(seen.at, self._limited(seen, self._recommended(seen)))

    def _recommended(self, seen: FleetObservation) -> int:
        ratio = self._ratio(seen)
        if seen.ready == 0 or _close(ratio, self._behaviour.tolerance):
            return seen.replicas
        if ratio < 1:
            return hpa_replicas(seen.ready, ratio, self._behaviour.tolerance)
        damped = ratio * seen.ready / max(1, seen.replicas)
        if damped < 1 or _close(damped, self._behaviour.tolerance):
            return seen.replicas
        return hpa_replicas(seen.replicas, damped, self._behaviour.tolerance)

    def _limited(self, seen: FleetObservation, wanted: int) -> int:
        pods, share = self._behaviour.up_pods, self._behaviour.up_share
        if pods is None and share is None:
            return wanted
        most = max(seen.replicas + (pods or 0), math.ceil(seen.replicas * (1 + (share or 0.0))))
        return min(wanted, most)


def by_utilisation(target: float = 0.7) -> HpaRule:
    """The sources' rule (SPEC AS-01): GPU utilisation against 70 %."""
    return HpaRule(lambda seen: seen.busy / target)


def by_in_flight(target: float, behaviour: HpaBehaviour | None = None) -> HpaRule:
    """Requests queued and running per ready replica against `target`: common for inference servers."""
    return HpaRule(lambda seen: seen.in_flight / max(1, seen.ready) / target, behaviour)
