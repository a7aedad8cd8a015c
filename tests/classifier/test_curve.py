"""Quality targets become rule parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.curve import lambda_for, quality_to_lambda, quality_to_tau, tau_for
from classifier.errors import PolicyInputsError
from classifier.manifest import CurvePoint
from classifier.training.train import Candidate


def point(parameter: float, no_worse: float) -> CurvePoint:
    return CurvePoint(parameter=parameter, no_worse=no_worse, quality=no_worse, cost_share=0.5)


FALLING = [point(0.0, 1.0), point(0.1, 0.95), point(0.2, 0.95), point(0.3, 0.8)]
share = st.floats(0, 1)


@given(st.lists(st.tuples(st.floats(0, 3), share), max_size=8), share, share)
def test_a_higher_target_never_raises_lambda_nor_lowers_tau(
    points: list[tuple[float, float]], one: float, two: float
) -> None:
    curve = [point(*p) for p in sorted(points)]
    low, high = sorted((one, two))
    assert lambda_for(curve, high) <= lambda_for(curve, low)
    taus = [point(p.parameter / 3, p.no_worse) for p in curve]
    assert tau_for(taus, high) >= tau_for(taus, low)


def test_lambda_is_read_off_the_curve() -> None:
    assert lambda_for(FALLING, 0.95) == pytest.approx(0.2)  # the cheaper of two equally good points
    assert lambda_for(FALLING, 0.875) == pytest.approx(0.25)
    assert lambda_for(FALLING, 0.5) == pytest.approx(0.3)


def test_a_target_of_one_means_quality_alone() -> None:
    assert lambda_for([point(0.5, 1.0)], 1.0) == 0.0
    assert tau_for([point(0.5, 1.0)], 1.0) == 1.0


def test_a_target_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(PolicyInputsError, match=r"quality target is 1\.2"):
        lambda_for(FALLING, 1.2)


def test_a_lambda_up_to_the_one_for_a_target_reached_it_on_the_valid_rows(tiny: Candidate) -> None:
    curves = tiny.model.manifest.curves
    for target in (0.85, 0.9, curves.default_quality_target):
        lambda_ = quality_to_lambda(tiny.model, target)
        assert lambda_ > 0
        assert min(p.no_worse for p in curves.lambda_rule if p.parameter < lambda_) >= target
        tau = quality_to_tau(tiny.model, target)
        assert min(p.no_worse for p in curves.tau_rule if p.parameter > tau) >= target
