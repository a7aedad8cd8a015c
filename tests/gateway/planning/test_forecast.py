"""Forecasts: finite and not negative for any input; seasons, trends and bursts are predicted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.planning.scaling.predictive import DAY_S, Forecaster
from tests.examples import examples

values = st.one_of(st.none(), st.just(0.0), st.floats(0, 1e9), st.just(math.nan), st.just(math.inf), st.floats(-1e6, 0))


@settings(max_examples=examples(30), deadline=None)
@given(series=st.lists(values, max_size=80), ahead=st.integers(1, 6))
def test_gaps_zeros_spikes_and_nonsense_give_a_finite_need_that_is_never_negative(series, ahead):
    forecaster = Forecaster(15, ahead)
    for value in series:
        forecaster.observe(value)
        assert 0 <= forecaster.need() < math.inf
        assert 0 <= forecaster.mean() < math.inf


def test_nothing_is_needed_before_anything_came():
    assert Forecaster(15, 2).need() == 0


def test_a_constant_rate_is_forecast_as_it_is():
    forecaster = Forecaster(15, 2)
    for _ in range(200):
        forecaster.observe(7.0)
    assert forecaster.need() == pytest.approx(7.0, rel=0.01)


def test_a_daily_season_is_seen_before_it_comes():
    interval, ahead = 900.0, 4
    forecaster = Forecaster(interval, ahead, quantile=0.5)
    series = [50 + 40 * math.sin(2 * math.pi * step * interval / DAY_S) for step in range(96 * 4)]
    errors, naive = [], []
    for step, value in enumerate(series):
        forecaster.observe(value)
        if step > 96 * 3 and step + ahead < len(series):
            coming = max(series[step + 1 : step + 1 + ahead])
            errors.append(abs(forecaster.mean() - coming))
            naive.append(abs(value - coming))
    assert np.mean(errors) < 0.3 * np.mean(naive)


def test_the_reserve_covers_the_share_of_times_that_was_asked_for():
    random = np.random.default_rng(5)
    forecaster = Forecaster(15, 1, quantile=0.9)
    covered = []
    for value in random.poisson(20, 1500):
        if len(covered) or forecaster.need() > 0:
            covered.append(value <= forecaster.need())
        forecaster.observe(float(value))
    assert 0.85 < np.mean(covered[300:]) < 0.95


def test_bursts_that_come_again_are_kept_in_reserve():
    calm, bursting = Forecaster(15, 2), Forecaster(15, 2)
    for step in range(120):
        calm.observe(1.0)
        bursting.observe(20.0 if step % 9 == 0 else 1.0)
    assert bursting.need() > 3 * calm.need()


@pytest.mark.parametrize("wrong", [(0, 1, 0.5), (15, 0, 0.5), (15, 1, 1.0)])
def test_impossible_forecasters_are_refused(wrong):
    with pytest.raises(ValueError):
        Forecaster(*wrong)
