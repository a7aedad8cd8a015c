"""How many replicas each tier should have now, updated from the gateways' counters."""

import msgspec

from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.scaling.predictive import PredictiveKnobs, PredictiveRule
from gateway.planning.scaling.scaling import FleetSettings, Observation, ServiceObjectives
from gateway.planning.scaling.traffic_counters import Passed


class TierTarget(msgspec.Struct, frozen=True, kw_only=True):
    """`target` replicas; `need`: the forecast, in fully busy replicas; `known`: whether the last interval was
    observed."""

    tier: str
    profile: str
    target: int
    need: float
    known: bool
    requests_per_second: float


class FleetTargets:
    """One predictive rule per tier. Tiers are named by their number, from '1' on."""

    def __init__(
        self,
        profiles: dict[str, ReplicaProfile],
        fleets: dict[str, FleetSettings],
        *,
        objectives: ServiceObjectives,
        knobs: PredictiveKnobs,
    ) -> None:
        self._profiles, self._fleets = profiles, fleets
        self._rules = {
            tier: PredictiveRule(
                profile,
                interval_s=fleets[tier].interval_s,
                cold_start_s=fleets[tier].cold_start_s,
                objectives=objectives,
                knobs=knobs,
            )
            for tier, profile in profiles.items()
        }
        self.tiers = {
            tier: TierTarget(
                tier=tier,
                profile=profile.name,
                target=fleets[tier].least,
                need=0.0,
                known=False,
                requests_per_second=0.0,
            )
            for tier, profile in profiles.items()
        }

    def update(self, at: float, passed: dict[str, Passed] | None) -> None:
        """Add an interval that ended at `at` (seconds of any steady clock); None is an unobserved one."""
        for tier, rule in self._rules.items():
            fleet, before = self._fleets[tier], self.tiers[tier]
            if passed is None:
                rule.miss()
                self.tiers[tier] = msgspec.structs.replace(before, known=False)
                continue
            counts = passed.get(tier, Passed())
            wanted = rule.desired(_observation(at, fleet, before, counts))
            self.tiers[tier] = msgspec.structs.replace(
                before,
                target=fleet.clamp(wanted),
                need=rule.forecast,
                known=True,
                requests_per_second=counts.requests / fleet.interval_s,
            )


def _observation(at: float, fleet: FleetSettings, before: TierTarget, counts: Passed) -> Observation:
    """Gateways count requests as they end, so ended requests stand for arrivals; a queue shows up in later
    intervals."""
    return Observation(
        at=at,
        seconds=fleet.interval_s,
        requests=counts.requests,
        prompt_tokens=counts.prompt_tokens,
        finished=counts.requests,
        output_tokens=counts.output_tokens,
        replicas=before.target,
        ready=before.target,
        in_flight=0,
        busy=0.0,
    )
