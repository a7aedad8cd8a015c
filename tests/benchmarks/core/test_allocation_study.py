"""Paged and contiguous memory under the same requests: shares add up, and the known waste of reservations shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.core.allocation_study import CacheDemand, study_allocation


@st.composite
def demands(draw):
    limit = draw(st.integers(1, 60))
    return CacheDemand(draw(st.integers(1, 60)), draw(st.integers(1, limit)), limit)


@given(trace=st.lists(demands(), max_size=25), concurrency=st.integers(1, 12), spare=st.integers(0, 200))
def test_every_request_is_answered_and_memory_is_accounted_for(trace, concurrency, spare):
    capacity = 16 * 8 + spare

    for figures in study_allocation(trace, capacity=capacity, block_size=16, concurrency=concurrency).values():
        assert 0 <= figures.stored_share <= 1
        assert figures.unused_share >= 0
        assert figures.free_share >= 0
        assert figures.stored_share + figures.unused_share + figures.free_share == pytest.approx(1)
        assert figures.running_most <= concurrency
        assert figures.steps >= max((d.output for d in trace), default=0)


def test_reservations_of_equal_requests_hold_as_many_as_fit_and_store_what_they_hold():
    # 40 tokens each at most, 10 of them stored on average over the answer: 4 at once in 160 tokens, half a block paged.
    trace = [CacheDemand(1, 19, 39)] * 40

    study = study_allocation(trace, capacity=160, block_size=1, concurrency=100)

    contiguous, paged = study["contiguous"], study["paged"]
    assert contiguous.running_most == 4
    assert contiguous.stored_share == pytest.approx(10 * 4 / 160, rel=0.05)
    assert contiguous.free_share == 0
    assert paged.running_most > 2 * contiguous.running_most
    assert paged.steps < contiguous.steps / 2
    assert paged.unused_share == 0


def test_a_page_wastes_less_than_a_block_for_each_request():
    trace = [CacheDemand(prompt, 5, 200) for prompt in range(1, 60)]

    paged = study_allocation(trace, capacity=1024, block_size=16, concurrency=64)["paged"]

    assert paged.unused_share * 1024 < 16 * paged.running_mean


def test_requests_that_all_fit_wait_for_nothing():
    study = study_allocation([CacheDemand(5, 3, 3)] * 4, capacity=1024, block_size=16, concurrency=4)

    assert {(f.steps, f.running_most, f.preemptions) for f in study.values()} == {(3, 4, 0)}


def test_a_request_that_fits_not_even_alone_is_refused():
    with pytest.raises(ValueError, match="may take 90 tokens; the memory holds 80"):
        study_allocation([CacheDemand(50, 1, 40)], capacity=80, block_size=16, concurrency=1)
