"""The comparison's unit: a trace on a fleet under a rule, how well requests were served, and the cost."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from benchmarks.fleet.rules import ScalingRule
from benchmarks.fleet.simulated_replica import SimulatedRequest
from benchmarks.fleet.simulation import FleetRun, FleetSimulation
from gateway.planning.capacity.capacity import best_operation
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import Arrival, Workload
from gateway.planning.scaling.scaling import FleetSettings, ServiceObjectives


def was_served_well(request: SimulatedRequest, profile: ReplicaProfile, objectives: ServiceObjectives) -> bool:
    """Return whether a request met its objectives."""
    alone = profile.unloaded_ttft_s(request.prompt_tokens, request.cached_tokens)
    longest = max(objectives.ttft_s, objectives.slowdown * alone)
    return request.ttft_s <= longest and request.itl_s <= objectives.itl_s


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A trace on a fleet; only arrivals after `since` count. Kubernetes applies its rules every `reactive_interval_s`,
    15 s by default."""

    trace: str
    profile: ReplicaProfile
    fleet: FleetSettings
    objectives: ServiceObjectives
    arrivals: Sequence[Arrival]
    since: float = -1.0
    reactive_interval_s: float = 15.0

    @property
    def until(self) -> float:
        return self.arrivals[-1].at

    def first_part(self, share: float) -> "Setting":
        """Return the first `share` of the trace's time, all of it counted."""
        cut = share * self.until
        part = [arrival for arrival in self.arrivals if arrival.at <= cut]
        return msgspec.structs.replace(self, arrivals=part, since=-1.0)

    def after(self, share: float) -> "Setting":
        """Return the whole trace, counted after its first `share`."""
        return msgspec.structs.replace(self, since=share * self.until)

    def at_speed(self, speed: float) -> "Setting":
        """Return the same requests in 1 / `speed` of the time: more load of the same shape."""
        arrivals = [replace(each, at=each.at / speed) for each in self.arrivals]
        return msgspec.structs.replace(self, arrivals=arrivals, since=self.since / speed)

    def reactive(self) -> "Setting":
        """Return the same for a Kubernetes rule."""
        fleet = msgspec.structs.replace(self.fleet, interval_s=self.reactive_interval_s)
        return msgspec.structs.replace(self, fleet=fleet)

    def run(self, rule: ScalingRule) -> FleetRun:
        """Run the trace under `rule`, starting with the warm pool."""
        requests = [
            SimulatedRequest(number, each.at, max(1, each.prompt_tokens), each.output_tokens)
            for number, each in enumerate(self.arrivals)
        ]
        return FleetSimulation(self.profile, self.fleet, rule).run(requests)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule. `changes`: how often the number ordered went up or down."""

    rule: str
    knobs: str
    requests: int
    missed: int
    replica_hours: float
    usd: float
    ttft_p50_s: float
    ttft_p99_s: float
    changes: int

    @property
    def attainment(self) -> float:
        """Share served well."""
        return 1 - self.missed / max(1, self.requests)


def score(setting: Setting, run: FleetRun, rule: str = "", knobs: str = "") -> Score:
    """Score `run` over what `setting` counts."""
    since, until = setting.since, setting.until
    served = [request for request in run.requests if since < request.at <= until]
    ttft = np.asarray([request.ttft_s for request in served])
    hours = run.replica_hours(max(0.0, since), until)
    ordered = [number for at, number, _ in run.sizes if since < at <= until]
    return Score(
        rule=rule,
        knobs=knobs,
        requests=len(served),
        missed=sum(not was_served_well(request, setting.profile, setting.objectives) for request in served),
        replica_hours=hours,
        usd=hours * setting.profile.usd_per_hour,
        ttft_p50_s=float(np.quantile(ttft, 0.5)),
        ttft_p99_s=float(np.quantile(ttft, 0.99)),
        changes=sum(before != after for before, after in pairwise(ordered)),
    )


def in_flight_target(setting: Setting) -> float:
    """Return the requests in flight at 70 % of the planner's maximum for a replica, for the trace's mean lengths."""
    load = Workload(
        rate=1.0,
        prompt_tokens=float(np.mean([max(1, each.prompt_tokens) for each in setting.arrivals])),
        output_tokens=float(np.mean([each.output_tokens for each in setting.arrivals])),
    )
    each, _ = best_operation(setting.profile, load, setting.objectives.for_lengths(setting.profile, load.prompt_tokens))
    return max(1.0, 0.7 * each.rate * each.e2e_s)
