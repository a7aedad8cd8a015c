"""A fleet of simulated replicas under a scaling rule: requests arrive, the rule is applied, replicas start and
drain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.fleet.rules import ScalingRule
from benchmarks.fleet.simulated_replica import SimulatedReplica, SimulatedRequest
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.scaling.scaling import FleetSettings, Observation


class ReplicaSpan(msgspec.Struct, frozen=True):
    """The time for which a replica was paid, in seconds."""

    ordered_at: float
    ended_at: float


class FleetRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result: every request, every replica's time, and (time, replicas ordered, ready) at each interval."""

    requests: list[SimulatedRequest]
    spans: list[ReplicaSpan]
    sizes: list[tuple[float, int, int]]

    def replica_hours(self, since: float, until: float) -> float:
        """Replica-hours paid for between two times."""
        seconds = (max(0.0, min(span.ended_at, until) - max(span.ordered_at, since)) for span in self.spans)
        return sum(seconds) / 3600


@dataclass(slots=True)
class _Counts:
    requests: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0


@dataclass
class FleetSimulation:
    """Assigns each request on arrival to the ready replica with the least queued work."""

    profile: ReplicaProfile
    settings: FleetSettings
    rule: ScalingRule
    _replicas: list[SimulatedReplica] = field(default_factory=list)
    _homeless: list[SimulatedRequest] = field(default_factory=list)
    _spans: list[ReplicaSpan] = field(default_factory=list)
    _counts: _Counts = field(default_factory=_Counts)
    _busy_before: float = 0.0

    def run(self, requests: Sequence[SimulatedRequest]) -> FleetRun:
        """From time 0, with the warm pool ready, to the end of the last answer."""
        self._replicas = [SimulatedReplica(self.profile, 0.0, 0.0) for _ in range(self.settings.least)]
        sizes = [(0.0, self.settings.least, self.settings.least)]
        next_ask = self.settings.interval_s
        for request in requests:
            while next_ask <= request.at:
                self._ask(next_ask, sizes)
                next_ask += self.settings.interval_s
            self._arrive(request)
        while any(replica.in_flight for replica in self._replicas) or self._homeless:
            self._ask(next_ask, sizes)
            next_ask += self.settings.interval_s
        end = next_ask - self.settings.interval_s
        self._spans += [ReplicaSpan(replica.ordered_at, end) for replica in self._replicas]
        return FleetRun(requests=list(requests), spans=self._spans, sizes=sizes)

    def _arrive(self, request: SimulatedRequest) -> None:
        self._counts.requests += 1
        self._counts.prompt_tokens += request.prompt_tokens
        self._advance(request.at)
        self._place(request, request.at)

    def _place(self, request: SimulatedRequest, now: float) -> None:
        serving = [replica for replica in self._replicas if replica.ready_at <= now and not replica.draining]
        if not serving:
            self._homeless.append(request)
            return
        min(serving, key=lambda replica: replica.load_s).put(request)

    def _advance(self, now: float) -> None:
        for replica in self._replicas:
            if replica.ready_at > now:
                continue
            for done in replica.advance(now):
                if done.finished_at is not None:
                    self._counts.finished += 1
                    self._counts.output_tokens += done.output_tokens

    def _ask(self, now: float, sizes: list[tuple[float, int, int]]) -> None:
        self._advance(now)
        homeless, self._homeless = self._homeless, []
        for request in homeless:
            self._place(request, now)
        kept = [replica for replica in self._replicas if not replica.draining]
        self._scale(now, self.settings.clamp(self.rule.desired(self._observation(now, kept))))
        for replica in [each for each in self._replicas if each.draining and not each.in_flight]:
            self._replicas.remove(replica)
            self._spans.append(ReplicaSpan(replica.ordered_at, max(now, replica.ordered_at)))
        self._busy_before = sum(replica.busy_s for replica in self._replicas)
        kept = [replica for replica in self._replicas if not replica.draining]
        sizes.append((now, len(kept), sum(replica.ready_at <= now for replica in kept)))

    def _observation(self, now: float, kept: list[SimulatedReplica]) -> Observation:
        ready = [replica for replica in kept if replica.ready_at <= now]
        busy_s = sum(replica.busy_s for replica in self._replicas) - self._busy_before
        counts, self._counts = self._counts, _Counts()
        able = sum(min(self.settings.interval_s, now - r.ready_at) for r in self._replicas if r.ready_at < now)
        return Observation(
            at=now,
            seconds=self.settings.interval_s,
            requests=counts.requests,
            prompt_tokens=counts.prompt_tokens,
            finished=counts.finished,
            output_tokens=counts.output_tokens,
            replicas=len(kept),
            ready=len(ready),
            in_flight=sum(replica.in_flight for replica in self._replicas) + len(self._homeless),
            busy=min(1.0, busy_s / able) if able > 0 else 0.0,
        )

    def _scale(self, now: float, wanted: int) -> None:
        """Order missing replicas; of surplus ones, stop those still starting first, then drain the least loaded."""
        kept = [replica for replica in self._replicas if not replica.draining]
        for _ in range(wanted - len(kept)):
            self._replicas.append(SimulatedReplica(self.profile, now, now + self.settings.cold_start_s))
        spare = sorted(kept, key=lambda replica: (replica.ready_at <= now, replica.load_s, -replica.ordered_at))
        for replica in spare[: max(0, len(kept) - wanted)]:
            replica.draining = True
