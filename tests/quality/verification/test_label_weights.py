"""Labels without their judges' errors say on average what is true."""

import numpy as np
import pytest

from quality.verification.training_rows import without_errors


def test_the_mean_of_what_a_judge_says_without_its_errors_is_the_true_rate() -> None:
    """A judge that is right in 80% says that 62% of 70% good answers are good."""
    said = np.array([[1.0]] * 62 + [[0.0]] * 38 + [[np.nan]], np.float32)
    found = without_errors(said, np.full((101, 1), 0.6, np.float32))
    assert np.nanmean(found) == pytest.approx(0.7)
    assert np.isnan(found[-1, 0])


def test_a_judge_without_errors_is_believed() -> None:
    said = np.array([[1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(without_errors(said, np.ones_like(said)), said)
