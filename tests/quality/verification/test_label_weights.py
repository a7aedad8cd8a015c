"""Labels without their judges' errors, and by the chance of each draw, say what is true of all answers."""

import numpy as np
import pytest

from quality.verification.training_rows import MOST_BY_CHANCE, by_chance, chances, without_errors


def test_the_mean_of_what_a_judge_says_without_its_errors_is_the_true_rate() -> None:
    """A judge that is right in 80% says that 62% of 70% good answers are good."""
    said = np.array([[1.0]] * 62 + [[0.0]] * 38 + [[np.nan]], np.float32)
    found = without_errors(said, np.full((101, 1), 0.6, np.float32))
    assert np.nanmean(found) == pytest.approx(0.7)
    assert np.isnan(found[-1, 0])


def test_a_judge_without_errors_is_believed() -> None:
    said = np.array([[1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(without_errors(said, np.ones_like(said)), said)


def test_the_chance_of_an_answer_that_is_judged_either_way_counts_half_from_each() -> None:
    assert chances(0.05, True, [1, 2, 3], [1], 4) == pytest.approx([0.1, 0.05, 0.05, 1.0])
    assert chances(0.2, False, [1], [], 4) == pytest.approx([0.4, 1.0, 1.0, 1.0])
    assert chances(0.7, False, [1], [], 2) == [1.0, 1.0]


def test_labels_of_where_a_tier_was_chosen_say_by_their_chance_what_is_true_of_all() -> None:
    """Half of the prompts go to tier 1, which answers 80% of these well and 20% of the others. Samples are of its own
    answers alone, probes of all."""
    rng = np.random.default_rng(1)
    chosen = rng.random(20_000) < 0.5
    good = rng.random(20_000) < np.where(chosen, 0.8, 0.2)
    probes, samples = rng.random(20_000) < 0.05, chosen & (rng.random(20_000) < 0.1)
    drawn = [(good[i], chances(0.05, True, [1], [1] if chosen[i] else [], 2)[0]) for i in np.flatnonzero(probes)]
    drawn += [(good[i], chances(0.1, False, [1], [], 2)[0]) for i in np.flatnonzero(samples)]
    score, chance = np.array(drawn, np.float32).T
    weight = by_chance(chance[:, None], np.ones((len(drawn), 1), np.float32), np.zeros(len(drawn), np.int32))[:, 0]
    assert score.mean() > 0.6
    assert (weight @ score) / weight.sum() == pytest.approx(0.5, abs=0.03)
    assert weight.sum() < len(drawn)


def test_weights_by_chance_are_bounded_and_of_each_key_and_tier() -> None:
    told = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]], np.float32)
    chance = np.array([[0.001, 0.1], [0.5, 0.7], [0.5, 0.1], [np.nan, 0.3]], np.float32)
    found = by_chance(chance, told, np.array([0, 0, 1, 0]))
    assert found[0, 0] / found[1, 0] <= MOST_BY_CHANCE**2
    assert found[0, 0] + found[1, 0] < 2
    assert found[2, 0] == found[2, 1] == 1.0
    assert found[3, 0] == 1.0, "of unknown chance"
    assert found[1, 1] == 1.0, "without a label"
