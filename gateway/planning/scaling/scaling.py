"""What a scaling rule aims at, its input and output, and slow scale-down."""

import math
from collections import deque

import msgspec

from gateway.planning.capacity.capacity import Objectives
from gateway.planning.capacity.replica_profile import ReplicaProfile


class ServiceObjectives(msgspec.Struct, frozen=True, kw_only=True):
    """A request is served well if its first token comes within `ttft_s`, or within `slowdown` times its unloaded time
    if that is longer, and its tokens within `itl_s` each on average."""

    ttft_s: float = 0.5
    slowdown: float = 3.0
    itl_s: float = 0.1

    def for_lengths(self, profile: ReplicaProfile, prompt_tokens: float) -> Objectives:
        """Return the same for the planner, nine requests in ten."""
        alone = profile.unloaded_ttft_s(prompt_tokens)
        return Objectives(ttft_s=max(self.ttft_s, self.slowdown * alone), itl_s=self.itl_s, quantile=0.9)


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`least` is the warm pool. `interval_s`: how often the rule is asked."""

    cold_start_s: float
    least: int = 3
    most: int = 64
    interval_s: float = 5.0

    def clamp(self, wanted: int) -> int:
        return min(self.most, max(self.least, wanted))


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A tier over the last interval of `seconds`, at `at` (seconds).

    `requests`, `prompt_tokens`: arrived; `finished`, `output_tokens`: of ended answers. `replicas`: ordered and not
    draining, of which `ready` serve; `in_flight`: requests queued and running; `busy`: mean share of time that ready
    replicas computed.
    """

    at: float
    seconds: float
    requests: int
    prompt_tokens: int
    finished: int
    output_tokens: int
    replicas: int
    ready: int
    in_flight: int
    busy: float


class SlowDown:
    """Scales up at once, and down only to the highest recommendation within `window_s`, as Kubernetes does."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._recent: deque[tuple[float, int]] = deque()

    def steady(self, at: float, wanted: int) -> int:
        """The highest recommendation of the window that ends at `at`, this one included."""
        self._recent.append((at, wanted))
        while self._recent[0][0] < at - self._window_s:
            self._recent.popleft()
        return max(number for _, number in self._recent)


def replicas_for(need: float) -> int:
    """Return whole replicas for a need in replicas, ignoring rounding noise."""
    return math.ceil(need - 1e-9)
