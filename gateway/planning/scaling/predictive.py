"""Predictive scaling: the forecast need over a new replica's start-up time, in replicas, with slow scale-down.

A rate is forecast by seasons and trend (ridge regression), recent values, and a reserve for bursts; this plays the role
of Prophet in the sources. `Forecaster` is fed one value per interval and predicts an upper bound of the next few,
with a quantile of its own recent errors on top (split conformal prediction, Vovk et al. 2005).
"""

import math
from collections import deque
from functools import cache
from itertools import islice

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.linear_model import Ridge

from gateway.planning.capacity.capacity import Objectives, Operation, best_operation
from gateway.planning.capacity.replica_profile import ReplicaProfile
from gateway.planning.capacity.workload import PlanError, Workload


class ServiceObjectives(msgspec.Struct, frozen=True, kw_only=True):
    """When a request is served well."""

    ttft_s: float = 0.5
    """Its first token comes within so many seconds."""
    slowdown: float = 3.0
    """Or its first token comes within so many times its unloaded time, if that is longer."""
    itl_s: float = 0.1
    """Its tokens come within so many seconds each, on average."""

    def for_lengths(self, profile: ReplicaProfile, prompt_tokens: float) -> Objectives:
        """Return the same for the planner, nine requests in ten."""
        alone = profile.unloaded_ttft_s(prompt_tokens)
        return Objectives(ttft_s=max(self.ttft_s, self.slowdown * alone), itl_s=self.itl_s, quantile=0.9)


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet that a rule scales."""

    cold_start_s: float
    least: int = 3
    """Size of the warm pool."""
    most: int = 64
    interval_s: float = 5.0
    """How often the rule is asked."""

    def clamp(self, wanted: int) -> int:
        return min(self.most, max(self.least, wanted))


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A tier over the last interval of `seconds`, at `at` (seconds)."""

    at: float
    seconds: float
    requests: int
    """Number of requests that arrived."""
    prompt_tokens: int
    """Tokens of the prompts that arrived."""
    finished: int
    """Number of answers that ended."""
    output_tokens: int
    """Tokens of the answers that ended."""


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


DAY_S, WEEK_S = 86_400.0, 604_800.0
_LAGS = 4
_WINDOWS = (8, 20)
_HARMONICS = {DAY_S: 6, WEEK_S: 4}
# Requests over which mean lengths are taken.
_REMEMBERED_REQUESTS = 2000.0


class Forecaster:
    """Forecasts a series of one value per `interval_s`; covers `ahead` intervals; has `quantile` of errors in reserve.

    A gap is fed as None: the interval is not learned from, and counts as the last value where a lag needs one. Refits
    every `refit` intervals on at most `memory`; until there are enough values it returns the recent maximum.
    """

    def __init__(
        self, interval_s: float, ahead: int, quantile: float = 0.9, memory: int = 40_320, refit: int = 4
    ) -> None:
        if interval_s <= 0 or ahead < 1 or not 0 < quantile < 1:
            raise ValueError(f"interval {interval_s} s, {ahead} ahead, quantile {quantile}: give positive ones")
        self._interval_s, self._ahead, self._quantile, self._refit = interval_s, ahead, quantile, refit
        self._values: deque[float] = deque(maxlen=memory)
        self._known: deque[bool] = deque(maxlen=memory)
        self._errors: deque[float] = deque(maxlen=max(60, memory // 20))
        self._pending: deque[tuple[int, float]] = deque()
        self._count = 0
        self._model: Ridge | None = None
        self._periods: list[float] = []

    def observe(self, value: float | None) -> None:
        """Add the value of the interval that just ended; None if unknown. Negative or not finite counts as None."""
        is_known = value is not None and math.isfinite(value) and value >= 0
        last = self._values[-1] if self._values else 0.0
        self._values.append(value if is_known and value is not None else last)
        self._known.append(is_known)
        self._count += 1
        self._judge()
        # With a long history one more value changes little, and a refit takes longer.
        if self._model is None or self._count % max(self._refit, len(self._values) // 100) == 0:
            self._fit()
        self._pending.append((self._count, self._expected()))

    def mean(self) -> float:
        """Expected maximum of the next `ahead` intervals; never negative."""
        return self._pending[-1][1] if self._pending else 0.0

    def need(self) -> float:
        """`mean` plus the reserve: enough in `quantile` of the cases, by recent errors. Never negative."""
        if not self._pending:
            return 0.0
        return max(0.0, self.mean() + self._reserve())

    def _reserve(self) -> float:
        if len(self._errors) < _LAGS:
            return max(self._values) - self.mean()
        return float(np.quantile(np.asarray(self._errors), self._quantile, method="higher"))

    def _judge(self) -> None:
        """Turn forecasts of past intervals into errors; periods with a gap are skipped."""
        while self._pending and self._pending[0][0] + self._ahead <= self._count:
            _, expected = self._pending.popleft()
            latest = range(-self._ahead, 0)
            if all(self._known[index] for index in latest):
                self._errors.append(max(self._values[index] for index in latest) - expected)

    def _expected(self) -> float:
        if self._model is None:
            return max(islice(reversed(self._values), _WINDOWS[0]))
        values = np.asarray(self._values)
        most = float(values.max())
        if most == 0:
            return 0.0
        guess = float(self._model.predict(self._rows(values / most, np.asarray([len(values)])))[0]) * most
        # Limit the forecast to what was seen before: a line through a spike must not run away.
        return min(max(0.0, guess), 2 * most)

    def _fit(self) -> None:
        values, is_known = np.asarray(self._values), np.asarray(self._known)
        first, ahead = _WINDOWS[-1], self._ahead
        if len(values) < first + ahead + 2 * _LAGS or values.max() == 0:
            return
        span = len(values) * self._interval_s
        self._periods = [period for period in _HARMONICS if span >= 2 * period]
        ends = np.arange(first, len(values) - ahead + 1)
        following = sliding_window_view(is_known, ahead)[ends].all(axis=1)
        ends = ends[is_known[ends - 1] & following]
        if len(ends) < 2 * _LAGS:
            return
        scaled = values / values.max()
        wanted = sliding_window_view(scaled, ahead)[ends].max(axis=1)
        self._model = Ridge(alpha=1.0).fit(self._rows(scaled, ends), wanted)

    def _rows(self, values: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return features of the times before which `ends` values are known, one row each."""
        columns = [values[ends - lag] for lag in range(1, _LAGS + 1)]
        for window in _WINDOWS:
            seen = sliding_window_view(values, window)[ends - window]
            columns += [seen.mean(axis=1), seen.max(axis=1)]
        counts = self._count - len(values) + ends
        columns.append((counts - self._count) / max(1, len(values)))
        for period in self._periods:
            angles = 2 * math.pi * counts * self._interval_s / period
            for harmonic in range(1, _HARMONICS[period] + 1):
                columns += [np.sin(harmonic * angles), np.cos(harmonic * angles)]
        return np.stack(columns, axis=1)


class PredictiveKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Knobs of predictive scaling."""

    busy: float = 0.8
    """Share of its best rate that a replica is given."""
    quantile: float = 0.9
    """Quantile of the forecast's errors that is kept in reserve."""
    down_window_s: float = 900.0
    """Scale down to no less than was recommended within this time."""


class PredictiveRule:
    """Asked every `interval_s`. A replica ordered now serves `cold_start_s` later, and the next order is possible after
    another interval, so the need over all of that time is forecast.

    Demand is measured in replicas: seconds of work offered per second. Prompts count when they arrive, answers by the
    mean length of ended ones, because an answer's length is unknown in advance.
    """

    def __init__(
        self,
        profile: ReplicaProfile,
        *,
        interval_s: float,
        cold_start_s: float,
        objectives: ServiceObjectives,
        knobs: PredictiveKnobs | None = None,
    ) -> None:
        self._profile, self._knobs = profile, knobs or PredictiveKnobs()
        self._objectives = objectives
        ahead = replicas_for((cold_start_s + interval_s) / interval_s)
        self._forecaster = Forecaster(interval_s, ahead, self._knobs.quantile)
        self._slow_down = SlowDown(self._knobs.down_window_s)
        self._requests = self._prompt_tokens = self._finished = self._output_tokens = 0.0
        self._best = cache(self._operation)

    @property
    def forecast(self) -> float:
        """Return how many replicas the coming intervals keep fully busy, including the reserve."""
        return self._forecaster.need()

    def miss(self) -> None:
        """Record an unobserved interval."""
        self._forecaster.observe(None)

    def desired(self, seen: Observation) -> int:
        return self._slow_down.steady(seen.at, replicas_for(self.need(seen) / self._knobs.busy))

    def need(self, seen: Observation) -> float:
        """Return how many replicas the time until the next order takes effect keeps fully busy."""
        self._learn_lengths(seen)
        if not self._requests:
            self._forecaster.observe(0.0)
            return 0.0
        prompt = max(1.0, self._prompt_tokens / self._requests)
        output = max(1.0, self._output_tokens / self._finished) if self._finished else prompt
        each = self._best(float(f"{prompt:.2g}"), float(f"{output:.2g}"))
        # The prompt's part of a request's cost scales with the arrived tokens, the rest with the number of requests.
        of_prompts = min(1.0, self._profile.prefill_s(prompt) * each.rate)
        requests = of_prompts * seen.prompt_tokens / prompt + (1 - of_prompts) * seen.requests
        self._forecaster.observe(requests / each.rate / seen.seconds)
        return self._forecaster.need()

    def _learn_lengths(self, seen: Observation) -> None:
        keep = max(0.0, 1 - seen.requests / _REMEMBERED_REQUESTS)
        self._requests = keep * self._requests + seen.requests
        self._prompt_tokens = keep * self._prompt_tokens + seen.prompt_tokens
        keep = max(0.0, 1 - seen.finished / _REMEMBERED_REQUESTS)
        self._finished = keep * self._finished + seen.finished
        self._output_tokens = keep * self._output_tokens + seen.output_tokens

    def _operation(self, prompt: float, output: float) -> Operation:
        """A replica's best operation within its objectives; without them if even an idle one misses them."""
        load = Workload(rate=1.0, prompt_tokens=prompt, output_tokens=output)
        try:
            return best_operation(self._profile, load, self._objectives.for_lengths(self._profile, prompt))[0]
        except PlanError:
            return best_operation(self._profile, load, Objectives())[0]
