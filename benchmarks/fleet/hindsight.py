"""The oracle: a schedule of replicas computed from the whole trace, the benchmark for the rules."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, product

from benchmarks.fleet.rules import FixedRule
from benchmarks.fleet.scoring import Setting, score
from benchmarks.fleet.simulation import FleetRun
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import Arrival
from gateway.planning.scaling.scaling import FleetSettings, Observation, replicas_for

# Answers over which a step's base is spread; the share `busy` absorbs the error.
_BATCH = 8
_BUSY = (0.4, 0.6, 0.8, 1.0, 1.2)
_WINDOWS_S = (0.0, 60.0)
_BLOCKS_S = (120.0, 60.0, 30.0)


class ClairvoyantRule:
    """Orders what the requests until its next order takes effect, plus `window_s`, will need."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        profile: ReplicaProfile,
        fleet: FleetSettings,
        *,
        busy: float,
        window_s: float,
    ) -> None:
        self._times = [arrival.at for arrival in arrivals]
        self._work = [0.0, *accumulate(_work(arrival, profile) for arrival in arrivals)]
        self._busy = busy
        self._ahead_s = fleet.cold_start_s + fleet.interval_s + window_s

    def desired(self, seen: Observation) -> int:
        first, last = (bisect_left(self._times, at) for at in (seen.at, seen.at + self._ahead_s))
        return replicas_for((self._work[last] - self._work[first]) / self._ahead_s / self._busy)


class ScheduleRule:
    """A fixed schedule of replicas per interval; the last number stays."""

    def __init__(self, schedule: Sequence[int], interval_s: float) -> None:
        self._schedule, self._interval_s = schedule, interval_s

    def desired(self, seen: Observation) -> int:
        return self._schedule[min(round(seen.at / self._interval_s), len(self._schedule)) - 1]


def cheapest_schedule(setting: Setting, most_missed: int, start: FleetRun) -> FleetRun:
    """Return a schedule that misses at most `most_missed` requests in few replica-hours.

    Starts from the cheapest clairvoyant rule or fixed number, or `start` (a run that misses no more), then descends
    greedily: removes a replica from blocks of intervals, long blocks first, as long as at most `most_missed` are
    missed. The optimum may be cheaper still.
    """
    best, cost = start, score(setting, start).replica_hours
    for busy, window_s in product(_BUSY, _WINDOWS_S):
        run = setting.run(
            ClairvoyantRule(setting.arrivals, setting.profile, setting.fleet, busy=busy, window_s=window_s)
        )
        found = score(setting, run)
        if found.missed <= most_missed and found.replica_hours < cost:
            best, cost = run, found.replica_hours
    for replicas in range(setting.fleet.least, setting.fleet.most + 1):
        run = setting.run(FixedRule(replicas))
        found = score(setting, run)
        if found.missed <= most_missed and found.replica_hours < cost:
            best, cost = run, found.replica_hours
            break
    schedule = [ordered for at, ordered, _ in best.sizes if 0 < at <= setting.until + setting.fleet.interval_s]
    for size in (max(1, round(seconds / setting.fleet.interval_s)) for seconds in _BLOCKS_S):
        for first in range(0, len(schedule), size):
            while True:
                lower = [
                    max(setting.fleet.least, number - (first <= place < first + size))
                    for place, number in enumerate(schedule)
                ]
                if lower == schedule:
                    break
                run = setting.run(ScheduleRule(lower, setting.fleet.interval_s))
                found = score(setting, run)
                if found.missed > most_missed or found.replica_hours >= cost:
                    break
                schedule, best, cost = lower, run, found.replica_hours
    return best


def _work(arrival: Arrival, profile: ReplicaProfile) -> float:
    step = profile.decode_s(arrival.prompt_tokens + arrival.output_tokens / 2) + profile.base_s / _BATCH
    return profile.unloaded_ttft_s(max(1, arrival.prompt_tokens)) + arrival.output_tokens * step
