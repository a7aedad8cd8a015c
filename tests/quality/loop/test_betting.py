"""Evidence by betting: rarely misled, however often one looks, and soon sure of what is there."""

import numpy as np
import pytest

from quality.betting import evidence, wealth


def test_gains_that_are_none_are_seldom_taken_for_some_at_whatever_look() -> None:
    rng = np.random.default_rng(1)
    streams = rng.choice([-1.0, 0.0, 0.0, 1.0], (1000, 400))

    misled = sum(evidence(stream, 1.1) >= 20 for stream in streams)

    assert misled <= 1000 * 0.05


def test_gains_that_are_there_are_found() -> None:
    gains = np.random.default_rng(2).choice([-1.0, 1.0], 400, p=[0.35, 0.65])

    assert evidence(gains, 1.1) >= 100
    assert evidence(-gains, 1.1) < 20


def test_evidence_once_reached_stays_and_none_is_one() -> None:
    assert evidence(np.array([]), 1.0) == 1.0
    up, down = np.full(20, 1.0), np.full(200, -0.9)
    assert evidence(np.concatenate([up, down]), 1.0) == pytest.approx(wealth(up, 1.0)[-1])


def test_a_gain_below_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="below the least possible"):
        wealth(np.array([-1.2]), 1.1)
