"""Measured step time by the number of rows computed: the cost of verifying drafts (SPEC SD-05)."""

from bisect import bisect_left, insort


class StepCosts:
    """Moving averages of seconds by rows: exact up to 16 rows, rounded to an eighth of an octave above.

    A step is bound by memory first and by arithmetic later, so costs are flat and then rise. Between measurements the
    cost is extrapolated with the slope before (flat if there is none), but no higher than the interpolation, so that
    cheap sizes are tried and then measured. Beyond the largest measurement the mean slope applies; below the smallest
    the cost is unknown. Costs are made monotonic and at most proportional to rows, since other values are noise.
    """

    _WEIGHT = 0.1  # of a new measurement
    _OUTLIER = 3.0  # a measurement counts as at most so many times the known value
    _OUT_OF_PROPORTION = 1.5

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._measured: dict[int, float] = {}
        self._seconds: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        """Record the seconds of a step of `rows`."""
        rows = _rounded(rows)
        known = self._measured.get(rows)
        if known is None:
            place = bisect_left(self._rows, rows)
            if place:
                below = self._rows[place - 1]
                seconds = min(seconds, self._seconds[below] * rows / below * self._OUT_OF_PROPORTION)
            insort(self._rows, rows)
            self._measured[rows] = seconds
        else:
            self._measured[rows] = known + self._WEIGHT * (min(seconds, self._OUTLIER * known) - known)
        least = self._measured[self._rows[-1]]
        for known_rows in reversed(self._rows):
            self._seconds[known_rows] = least = min(least, self._measured[known_rows])

    def seconds(self, rows: int) -> float | None:
        """Return the seconds of a step of `rows`; None if none as small was measured."""
        known = self._rows
        place = bisect_left(known, rows)
        if place < len(known) and known[place] == rows:
            return self._seconds[rows]
        if place == 0:
            return None
        low = known[place - 1]
        if place < len(known):
            high = known[place]
            share = (rows - low) / (high - low)
            between = self._seconds[low] * (1 - share) + self._seconds[high] * share
            return min(between, self._seconds[low] + self._slope_before(place - 1) * (rows - low))
        first, last = self._seconds[known[0]], self._seconds[low]
        slope = max(0.0, last - first) / (low - known[0]) if low > known[0] else 0.0
        return last + slope * (rows - low)

    def _slope_before(self, place: int) -> float:
        """Seconds per row from the measurement before the one at `place` to it; 0 if there is none."""
        if place == 0:
            return 0.0
        before, here = self._rows[place - 1], self._rows[place]
        return (self._seconds[here] - self._seconds[before]) / (here - before)


def _rounded(rows: int) -> int:
    grain = 1 << max(0, rows.bit_length() - 4)
    return rows if rows <= 16 else round(rows / grain) * grain
