"""Forecasts a rate: seasons and trend by ridge regression, recent values, and a reserve for bursts.

Plays the role of Prophet in the sources. `Forecaster` is fed one value per interval and predicts an upper bound of the
next few, with a quantile of its own recent errors on top (split conformal prediction, Vovk et al. 2005).
"""

import math
from collections import deque
from itertools import islice

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.linear_model import Ridge

DAY_S, WEEK_S = 86_400.0, 604_800.0
_LAGS = 4
_WINDOWS = (8, 20)
_HARMONICS = {DAY_S: 6, WEEK_S: 4}


class Forecaster:
    """Forecasts a series with one value per `interval_s`; covers `ahead` intervals; keeps `quantile` of the errors in
    reserve.

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
        known = value is not None and math.isfinite(value) and value >= 0
        last = self._values[-1] if self._values else 0.0
        self._values.append(value if known and value is not None else last)
        self._known.append(known)
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
            if all(self._known[place] for place in latest):
                self._errors.append(max(self._values[place] for place in latest) - expected)

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
        values, known = np.asarray(self._values), np.asarray(self._known)
        first, ahead = _WINDOWS[-1], self._ahead
        if len(values) < first + ahead + 2 * _LAGS or values.max() == 0:
            return
        span = len(values) * self._interval_s
        self._periods = [period for period in _HARMONICS if span >= 2 * period]
        ends = np.arange(first, len(values) - ahead + 1)
        following = sliding_window_view(known, ahead)[ends].all(axis=1)
        ends = ends[known[ends - 1] & following]
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
