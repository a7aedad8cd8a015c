"""Where a latency-throughput curve bends: beyond it, more load buys waiting instead of work (SPEC BS-11)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One load of a closed loop: `concurrency` in flight gave `throughput` at `latency`, in any units."""

    concurrency: int
    throughput: float
    latency: float


def knee(points: Sequence[OperatingPoint]) -> OperatingPoint:
    """The point farthest above the straight line from the curve's start to its end (Kneedle, Satopaa et al. 2011).

    Throughput over latency, both scaled to their range, so the choice depends on how far the curve was measured. Of
    equals the lowest concurrency. Raises `ValueError` for fewer than three points.
    """
    if len(points) < 3:
        raise ValueError(f"a knee needs at least 3 points, not {len(points)}")
    curve = sorted(points, key=lambda point: point.concurrency)
    across = _scaled([point.latency for point in curve])
    up = _scaled([point.throughput for point in curve])
    heights = [y - x for x, y in zip(across, up, strict=True)]
    return curve[heights.index(max(heights))]


def saturation(points: Sequence[OperatingPoint]) -> float:
    """The concurrency at which the two asymptotes of a closed loop meet (Denning and Buzen 1978): N* = X_max R_1.

    Below it a server is limited by what is offered, above it by what it can do. By Little's law R_1 = N_1 / X_1 at the
    lowest load measured. Raises `ValueError` without points.
    """
    if not points:
        raise ValueError("saturation needs at least 1 point")
    lowest = min(points, key=lambda point: point.concurrency)
    return lowest.concurrency * max(point.throughput for point in points) / lowest.throughput


def _scaled(values: list[float]) -> list[float]:
    """To the range 0…1; all 0 if they do not differ."""
    low, span = min(values), max(values) - min(values)
    return [(value - low) / span if span else 0.0 for value in values]
