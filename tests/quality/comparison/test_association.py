"""The permutation test of labels and prompts: exact, anytime-valid, and of some power."""

from dataclasses import replace
from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest

from classifier.local.cells import Labels
from quality.comparison.association import TOTAL_LEVEL, Association, association, level_of
from tests.quality.retraining.test_levels import near_the_target

PRIOR = np.array([[0.9], [0.8], [0.6], [0.3]], np.float32)


def p_of(labels: Labels, *, look: int = 1, deals: int = 999, most_of_tenant: int = 400) -> Association:
    return association(labels, PRIOR, most_of_tenant, look=look, deals=deals)


def shuffled(labels: Labels, seed: int) -> Labels:
    return replace(labels, scores=np.random.default_rng(seed).permutation(labels.scores))


def test_labels_that_do_not_depend_on_prompts_have_a_p_of_at_most_u_with_a_probability_of_at_most_u() -> None:
    draws = 300
    found = [p_of(shuffled(near_the_target(60, seed), seed), deals=99).p for seed in range(draws)]
    for level in (0.02, 0.1, 0.5):
        share = NormalDist(draws * level, (draws * level * (1 - level)) ** 0.5)
        assert sum(p <= level for p in found) <= share.inv_cdf(0.9999)
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


def test_p_is_the_share_of_all_deals_that_are_at_least_as_likely_under_dependence() -> None:
    """Of seven labels all deals are counted, by the density of a multivariate normal distribution."""
    labels = near_the_target(7, 1)
    classes = np.random.default_rng(5).dirichlet(np.ones(4), 7).astype(np.float32)
    labels = replace(labels, classes=classes, scores=np.array([[1], [0], [0], [1], [0], [0], [1]], np.float32))
    y = labels.scores[:, 0].astype(np.float64)
    h = (labels.classes @ PRIOR)[:, 0].astype(np.float64)
    h -= h.mean()

    def unit_variance(values: np.ndarray) -> np.ndarray:
        centred = values - values.mean(axis=0)
        return centred @ centred.T / max((centred**2).sum(axis=1).mean(), 1e-18)

    linear = (unit_variance(labels.embedding.astype(float)) + unit_variance(labels.classes.astype(float))) / 3
    distance = ((labels.embedding[:, None] - labels.embedding[None]) ** 2).sum(axis=-1)
    covariance = np.eye(7) * y.var() + 0.25**2 * np.outer(h, h) + 0.1**2 * (linear + np.exp(-distance / 2 / 0.3**2))

    def density(dealt: np.ndarray) -> float:
        off = dealt - y.mean() - 0.5 * h
        return float(-off @ np.linalg.solve(covariance, off))

    known = density(y)
    exact = np.mean([density(np.array(dealt)) >= known - 1e-9 for dealt in permutations(y)])
    assert 0.05 < exact < 0.95
    assert p_of(labels, deals=9_999).p == pytest.approx(exact, abs=0.02)


def test_labels_that_depend_on_prompts_are_seen() -> None:
    shown = [p_of(near_the_target(400, seed)) for seed in range(8)]
    assert sum(one.is_shown for one in shown) >= 6
    by_class = replace(near_the_target(200, 0), classes=np.repeat(np.eye(4, dtype=np.float32), 50, axis=0))
    good = np.repeat([0.95, 0.8, 0.6, 0.3], 50)
    rng = np.random.default_rng(0)
    ordered = replace(by_class, scores=(rng.random(200) < good)[:, None].astype(np.float32))
    assert p_of(ordered).is_shown


def test_of_a_tenant_the_newest_labels_count_up_to_its_bound() -> None:
    mine = replace(near_the_target(400, 0), tenant=np.zeros(400, np.int32))
    assert p_of(mine, most_of_tenant=400).is_shown
    newest = mine.take(np.arange(370, 400))
    assert p_of(mine, most_of_tenant=30).p == p_of(newest, most_of_tenant=400).p
    two = replace(mine, tenant=np.arange(400, dtype=np.int32) % 2)
    assert p_of(two, most_of_tenant=30).p == p_of(two.take(np.arange(340, 400))).p


def test_labels_that_are_all_alike_say_nothing() -> None:
    alike = replace(near_the_target(60, 0), scores=np.ones((60, 1), np.float32))
    none = replace(alike, scores=np.full((60, 1), np.nan, np.float32))
    assert [p_of(alike).p, p_of(none).p] == [1.0, 1.0]


def test_the_levels_of_all_looks_sum_to_no_more_than_the_total() -> None:
    levels = [level_of(look) for look in range(1, 10_000)]
    assert levels[0] == TOTAL_LEVEL / 2
    assert 0.999 * TOTAL_LEVEL < sum(levels) < TOTAL_LEVEL
    once, again = (p_of(near_the_target(400, 0), look=look) for look in (1, 2))
    assert once.p == again.p
    assert (once.level, again.level) == (level_of(1), level_of(2))
