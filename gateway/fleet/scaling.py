"""Input and output of a scaling rule, and the rules without a forecast: a fixed number, and slow scale-down."""

import math
from collections import deque
from typing import Protocol

import msgspec


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


class ScalingRule(Protocol):
    """Decides how many replicas there should be, once per interval."""

    def desired(self, seen: Observation) -> int:
        """Return at least 0; the caller applies limits."""
        ...


class FixedRule:
    """Always the same number."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def desired(self, seen: Observation) -> int:
        return self._replicas


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
