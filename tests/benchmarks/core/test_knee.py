"""The knee finder, on curves whose knee is known."""

import pytest

from benchmarks.core.sweep import OperatingPoint, knee, saturation

LEVELS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def closed_loop(levels, most, alone):
    """A server that answers `most` requests per second at best and one alone in `alone` seconds, without variance."""
    return [OperatingPoint(n, min(n / alone, most), max(alone, n / most)) for n in levels]


@pytest.mark.parametrize("at", [4, 16, 64])
def test_the_knee_of_an_ideal_server_is_where_its_asymptotes_meet(at):
    points = closed_loop(LEVELS, most=at / 0.5, alone=0.5)

    assert knee(points).concurrency == at
    assert saturation(points) == pytest.approx(at)


def test_a_knee_is_found_between_soft_ends_whatever_the_units():
    # Two straight pieces that bend at 8: steep throughput before, steep latency after; 3% of wobble on both.
    wobbles = {1: 1.0, 2: 1.02, 4: 0.98, 8: 1.0, 16: 1.03, 32: 0.97, 64: 1.01}
    points = []
    for n, wobble in wobbles.items():
        below, above = min(n, 8), max(0, n - 8)
        points.append(OperatingPoint(n, wobble * (100 * below + 2 * above), wobble * (5e4 * below + 5e5 * above)))

    assert knee(points).concurrency == 8


def test_points_may_come_in_any_order():
    points = closed_loop(LEVELS, most=16, alone=0.5)

    assert knee(points[::-1]) == knee(points)


def test_a_curve_that_never_rises_bends_at_its_lowest_load():
    points = [OperatingPoint(n, 10.0, n / 10) for n in LEVELS]

    assert knee(points).concurrency == 1
    assert saturation(points) == 1


def test_two_points_have_no_knee():
    with pytest.raises(ValueError, match="at least 3 points, not 2"):
        knee(closed_loop([1, 2], 1, 1))
