"""The suggested batch sizes are the best ones for the batches that came together."""

import itertools
from random import Random

import hypothesis.strategies as st
from hypothesis import given

from inference_core.engine.auto_tuner import suggest_preferred_sizes

histograms = st.dictionaries(st.integers(1, 9), st.integers(0, 6), max_size=7)


def left_over(gathered: dict[int, int], sizes: tuple[int, ...] | list[int]) -> int:
    """Requests that a batcher which cuts to preferred sizes leaves waiting."""
    taken = {n: max((size for size in sizes if size <= n), default=0) for n in gathered}
    return sum(count * (n - taken[n]) for n, count in gathered.items())


def test_the_sizes_that_a_trace_was_made_of_are_found() -> None:
    random = Random(0)
    trace = random.choices([8, 16, 32], weights=[5, 3, 2], k=500) + random.choices(range(33, 35), k=20)
    assert suggest_preferred_sizes({n: trace.count(n) for n in set(trace)}, most=3) == [8, 16, 32]


def test_fewer_sizes_are_suggested_where_more_would_save_nothing() -> None:
    assert suggest_preferred_sizes({4: 10, 12: 1}) == [4, 12]
    assert suggest_preferred_sizes({}) == []
    assert suggest_preferred_sizes({5: 3}, most=0) == []


@given(histograms, st.integers(1, 4))
def test_no_other_sizes_leave_fewer_requests_waiting(gathered: dict[int, int], most: int) -> None:
    suggested = suggest_preferred_sizes(gathered, most)
    assert suggested == sorted(set(suggested))
    assert len(suggested) <= most
    others = (sizes for count in range(most + 1) for sizes in itertools.combinations(range(1, 10), count))
    assert left_over(gathered, suggested) == min(left_over(gathered, sizes) for sizes in others)
