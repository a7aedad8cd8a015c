"""What a step takes by the number of tokens it computes, as measured: the price of verifying drafts (SPEC SD-05)."""

from bisect import bisect_left, insort


class StepCosts:
    """Seconds by rows, forgetting: exact up to 16 rows, in steps of an eighth of an octave above.

    A step is bound by memory first and by arithmetic later, so costs are flat and then rise. What was not measured is
    therefore taken to go on as it rose before, flat where nothing was measured before, and at most to lie between its
    neighbours: what may be cheap is tried, and then known. Beyond the most that was measured it goes on at the mean
    slope; below the least nothing is said. More rows never take less, and at most in proportion longer; a measurement
    that says otherwise was disturbed.
    """

    _WEIGHT = 0.1  # of the last measurement
    _OUTLIER = 3.0  # a pause of the machine counts as at most so many times what was known
    _OUT_OF_PROPORTION = 1.5

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._measured: dict[int, float] = {}
        self._seconds: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` took so long."""
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
        """What a step of `rows` takes; None if none as small was measured."""
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
