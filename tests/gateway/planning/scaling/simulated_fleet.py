"""A fleet of simulated replicas under a scaling rule, and how well its requests were served (SPEC AS-02, AS-03, TI-13).

A replica batches continuously with chunked prefill, at the step times of a profile. Between two events (an arrival, the
end of a prompt, the end of an answer) the mix of a step is constant, so time jumps from event to event without single
steps: a fluid model, wrong by at most a step per event.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

import msgspec

from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import Arrival
from gateway.planning.scaling.predictive import FleetSettings, ServiceObjectives
from tests.gateway.planning.scaling.hpa import FleetObservation

_TIE = 1e-9


class ScalingRule(Protocol):
    """Decides how many replicas there should be, once per interval."""

    def desired(self, seen: FleetObservation) -> int:
        """Return at least 0; the caller applies limits."""
        ...


class FixedRule:
    """Always the same number."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def desired(self, seen: FleetObservation) -> int:
        return self._replicas


class ScheduleRule:
    """A fixed schedule of replicas per interval; the last number stays."""

    def __init__(self, schedule: Sequence[int], interval_s: float) -> None:
        self._schedule, self._interval_s = schedule, interval_s

    def desired(self, seen: FleetObservation) -> int:
        return self._schedule[min(round(seen.at / self._interval_s), len(self._schedule)) - 1]


@dataclass(slots=True)
class SimulatedRequest:
    """`cached_tokens` of the prompt are not computed. Times are seconds of the simulation, None until they occur."""

    number: int
    at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None

    @property
    def ttft_s(self) -> float:
        """Infinite while there is no token."""
        return float("inf") if self.first_token_at is None else self.first_token_at - self.at

    @property
    def itl_s(self) -> float:
        """Mean time between tokens; 0 for an answer of one token."""
        if self.output_tokens == 1:
            return 0.0
        if self.finished_at is None or self.first_token_at is None:
            return float("inf")
        return (self.finished_at - self.first_token_at) / (self.output_tokens - 1)


@dataclass(slots=True)
class SimulatedReplica:
    """Prompts run first come, first served; every admitted answer decodes in every step. `ready_at`: when it may
    serve."""

    profile: ReplicaProfile
    ordered_at: float
    ready_at: float
    draining: bool = False
    clock: float = 0.0
    busy_s: float = 0.0
    _waiting: deque[SimulatedRequest] = field(default_factory=deque)
    _decoding: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)
    _head_left: float = 1.0
    _steps: float = 0.0
    _decode_s: float = 0.0
    _kv_tokens: int = 0
    _queued_s: float = 0.0

    def __post_init__(self) -> None:
        self.clock = self.ready_at

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._decoding)

    @property
    def load_s(self) -> float:
        """Seconds of prompts ahead of a new one plus the current step time: the load balancer's criterion."""
        return self._queued_s + self._decode_s

    def put(self, request: SimulatedRequest) -> None:
        """Queue a request; `advance` to its arrival first."""
        self._waiting.append(request)
        self._queued_s += self.profile.prefill_s(request.prompt_tokens, request.cached_tokens)

    def advance(self, until: float) -> list[SimulatedRequest]:
        """Serve to `until`. Returns the requests whose prompt ended (`first_token_at` is set) or that finished."""
        changed: list[SimulatedRequest] = []
        profile = self.profile
        while self.clock < until:
            head = self._head()
            if head is None and not self._decoding:
                self.clock = until
                break
            step_s = profile.base_s + self._decode_s
            if head is None:
                head_s, step_rate = float("inf"), 1 / step_s
            else:
                fresh = max(1, head.prompt_tokens - head.cached_tokens)
                chunks = fresh / profile.chunk_tokens
                whole_s = profile.prefill_s(head.prompt_tokens, head.cached_tokens) + chunks * step_s
                head_s, step_rate = self._head_left * whole_s, chunks / whole_s
            decode_s = max(0.0, self._decoding[0][0] - self._steps) / step_rate if self._decoding else float("inf")
            passed = min(head_s, decode_s, until - self.clock)
            self.clock += passed
            self.busy_s += passed
            self._steps += passed * step_rate
            if head is not None:
                self._head_left -= passed / whole_s
                if passed >= head_s - _TIE:
                    changed.append(self._finish_prompt(head))
            if passed >= decode_s - _TIE:
                changed.append(self._finish_answer())
        return changed

    def _head(self) -> SimulatedRequest | None:
        """The next prompt, if the batch and the cache have room for its answer."""
        if not self._waiting or len(self._decoding) >= self.profile.max_sequences:
            return None
        head = self._waiting[0]
        if self._decoding and self._kv_tokens + head.prompt_tokens + head.output_tokens > self.profile.kv_tokens:
            return None
        return head

    def _finish_prompt(self, head: SimulatedRequest) -> SimulatedRequest:
        self._waiting.popleft()
        self._head_left = 1.0
        self._queued_s = max(0.0, self._queued_s - self.profile.prefill_s(head.prompt_tokens, head.cached_tokens))
        head.first_token_at = self.clock
        if head.output_tokens == 1:
            head.finished_at = self.clock
        else:
            self._admit(head)
        return head

    def _admit(self, request: SimulatedRequest) -> None:
        heappush(self._decoding, (self._steps + request.output_tokens - 1, request.number, request))
        self._decode_s += self.profile.decode_s(request.prompt_tokens + request.output_tokens / 2)
        self._kv_tokens += request.prompt_tokens + request.output_tokens

    def _finish_answer(self) -> SimulatedRequest:
        _, _, done = heappop(self._decoding)
        self._decode_s = max(0.0, self._decode_s - self.profile.decode_s(done.prompt_tokens + done.output_tokens / 2))
        self._kv_tokens -= done.prompt_tokens + done.output_tokens
        if not self._decoding:
            self._decode_s = 0.0
        done.finished_at = self.clock
        return done


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

    def _observation(self, now: float, kept: list[SimulatedReplica]) -> FleetObservation:
        ready = [replica for replica in kept if replica.ready_at <= now]
        busy_s = sum(replica.busy_s for replica in self._replicas) - self._busy_before
        counts, self._counts = self._counts, _Counts()
        able = sum(min(self.settings.interval_s, now - r.ready_at) for r in self._replicas if r.ready_at < now)
        return FleetObservation(
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


def was_served_well(request: SimulatedRequest, profile: ReplicaProfile, objectives: ServiceObjectives) -> bool:
    """Return whether a request met its objectives."""
    alone = profile.unloaded_ttft_s(request.prompt_tokens, request.cached_tokens)
    longest = max(objectives.ttft_s, objectives.slowdown * alone)
    return request.ttft_s <= longest and request.itl_s <= objectives.itl_s


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A trace on a fleet; only arrivals after `since` count."""

    profile: ReplicaProfile
    fleet: FleetSettings
    objectives: ServiceObjectives
    arrivals: Sequence[Arrival]
    since: float = -1.0

    @property
    def until(self) -> float:
        return self.arrivals[-1].at

    def after(self, share: float) -> "Setting":
        """Return the whole trace, counted after its first `share`."""
        return msgspec.structs.replace(self, since=share * self.until)

    def run(self, rule: ScalingRule) -> FleetRun:
        """Run the trace under `rule`, starting with the warm pool."""
        requests = [
            SimulatedRequest(number, each.at, max(1, each.prompt_tokens), each.output_tokens)
            for number, each in enumerate(self.arrivals)
        ]
        return FleetSimulation(self.profile, self.fleet, rule).run(requests)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule. `changes`: how often the number ordered went up or down."""

    requests: int
    missed: int
    replica_hours: float
    changes: int

    @property
    def attainment(self) -> float:
        """Share served well."""
        return 1 - self.missed / max(1, self.requests)


def score(setting: Setting, run: FleetRun) -> Score:
    """Score `run` over what `setting` counts."""
    since, until = setting.since, setting.until
    served = [request for request in run.requests if since < request.at <= until]
    ordered = [number for at, number, _ in run.sizes if since < at <= until]
    return Score(
        requests=len(served),
        missed=sum(not was_served_well(request, setting.profile, setting.objectives) for request in served),
        replica_hours=run.replica_hours(max(0.0, since), until),
        changes=sum(before != after for before, after in pairwise(ordered)),
    )
