"""Quantiles of any number of values in bounded memory, each within one percent of the exact one."""

import math
from collections.abc import Sequence

import msgspec

_ACCURACY = 0.01
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_LEAST, _MOST = 1e-6, 1e6


class Sketch(msgspec.Struct):
    """Counts on a logarithmic grid (DDSketch, Masson et al. 2019): at most 1,400, for values from a millionth to a
    million; values outside count as the nearest. Sketches merge without loss."""

    counts: dict[int, int] = {}
    total: int = 0
    sum: float = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        counted = value if _LEAST < value < _MOST else min(max(value, _LEAST), _MOST)
        place = math.ceil(math.log(counted) / _LOG_GAMMA)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.total += 1
        self.sum += value

    def merge(self, other: "Sketch") -> None:
        """Add all counts of `other`."""
        for place, count in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + count
        self.total += other.total
        self.sum += other.sum

    def quantile(self, share: float) -> float | None:
        """Return the value below which `share` of the values lie; None if empty."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return the quantiles of ascending `shares`, in one pass."""
        found: list[float | None] = []
        places = iter(sorted(self.counts))
        passed, value = 0, None
        for share in shares:
            rank = share * (self.total - 1)
            while passed <= rank and (place := next(places, None)) is not None:
                passed += self.counts[place]
                value = float(2 * _GAMMA**place / (_GAMMA + 1))
            found.append(value)
        return found

    @property
    def mean(self) -> float | None:
        """The exact mean; None if empty."""
        return self.sum / self.total if self.total else None
