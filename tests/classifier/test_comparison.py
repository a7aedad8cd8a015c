"""Two versions on the same rows: what differs, and by how much for sure."""

import pytest
from synthetic_outcomes import generated_rows

from classifier.batch import BatchPredictor
from classifier.training.compare_command import compare
from classifier.training.train import Candidate


def test_a_version_differs_from_itself_in_nothing(tiny: Candidate) -> None:
    one = BatchPredictor(tiny.model)
    found = compare(one, one, generated_rows(120, seed=5))
    assert found.other_tier == 0.0
    assert {m.difference for m in found.measures} == {0.0}
    assert all(m.low == m.high == 0.0 for m in found.measures)


def test_a_lower_target_costs_less_and_the_interval_says_so(tiny: Candidate) -> None:
    strict, loose = BatchPredictor(tiny.model, 1.0), BatchPredictor(tiny.model, 0.0)
    found = {m.name: m for m in compare(strict, loose, generated_rows(240, seed=5)).measures}
    assert found["cost share"].a == 1.0
    assert found["cost share"].high < 0
    assert found["share no worse"].a == 1.0
    assert found["Brier, no_worse_1"].difference == pytest.approx(0.0)
