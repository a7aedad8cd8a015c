"""Recent verified outcomes lower P(no worse) where they contradict it, nowhere else, and not by chance (SPEC QM-05)."""

import numpy as np
import pytest

from classifier.memory import Memory
from classifier.recent_memory import Reach, RecentMemory, RecentSettings

DIM = 32
REACH = Reach(far=0.3, near=0.7)
DAY = 86_400.0


def around(centre: int, n: int, seed: int = 0, spread: float = 0.05) -> np.ndarray:
    """Unit vectors near the axis `centre`."""
    vectors = np.eye(DIM)[centre] + spread * np.random.default_rng(seed).normal(size=(n, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def outcomes(tier: int, good: np.ndarray) -> np.ndarray:
    labels = np.full((len(good), 3), np.nan, np.float32)
    labels[:, tier - 1] = good
    return labels


def remembered(good: np.ndarray, p: float = 0.9, weight: float = 1.0, at: float = 0.0) -> RecentMemory:
    memory, n = RecentMemory(REACH, 4), len(good)
    ones = np.ones(n, np.float32)
    memory.add(around(0, n), outcomes(1, good), np.full((n, 3), p, np.float32), weight * ones, at * ones)
    return memory


def prompts(p: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """One prompt in the neighbourhood, one elsewhere."""
    return np.vstack([around(0, 1, seed=9), around(5, 1, seed=9)]), np.full((2, 3), p, np.float32)


def test_bad_outcomes_lower_the_tier_they_are_of_in_their_neighbourhood_alone() -> None:
    embeddings, p_ok = prompts()

    adjusted = remembered(np.zeros(12)).adjust(embeddings, p_ok, now=1.0)

    assert adjusted[0, 0] < 0.25
    np.testing.assert_array_equal(adjusted[0, 1:], p_ok[0, 1:])
    np.testing.assert_array_equal(adjusted[1], p_ok[1])
    assert p_ok[0, 0] == np.float32(0.9)


def test_one_bad_sample_moves_nothing() -> None:
    embeddings, p_ok = prompts(0.99)
    np.testing.assert_array_equal(remembered(np.zeros(1), p=0.99).adjust(embeddings, p_ok, now=1.0), p_ok)


def test_good_outcomes_that_follow_end_the_repair() -> None:
    embeddings, p_ok = prompts()
    memory = remembered(np.zeros(5))
    assert memory.adjust(embeddings, p_ok, now=1.0)[0, 0] < 0.9
    n = 60
    memory.add(around(0, n, seed=1), outcomes(1, np.ones(n)), np.full((n, 3), 0.9, np.float32), np.ones(n), np.ones(n))
    np.testing.assert_array_equal(memory.adjust(embeddings, p_ok, now=1.0), p_ok)
    assert memory.snapshot(1.0).neighbourhoods() == []


@pytest.mark.parametrize(("error", "p"), [(0.0, 0.9), (0.0, 0.6), (0.2, 0.9)])
def test_errors_at_the_predicted_rate_bring_a_neighbourhood_into_force_as_rarely_as_stated(
    error: float, p: float
) -> None:
    """Judges that err as often as their weight says do not change that: an e-value of 100 has probability 0.01."""
    rng = np.random.default_rng(1)
    fired = 0
    for _ in range(200):
        good = rng.random(50) < p
        judged = good ^ (rng.random(50) < error)
        memory = remembered(judged.astype(np.float64), p=p, weight=1 - 2 * error)
        fired += bool(memory.snapshot(1.0).neighbourhoods())
    assert fired <= 6


def test_an_unadmitted_judge_error_would_have_been_taken_for_a_shift() -> None:
    judged = (np.random.default_rng(2).random(300) < 0.74).astype(np.float64)  # 0.9 right, seen by a judge who errs 20%
    assert not remembered(judged, weight=0.6).snapshot(1.0).neighbourhoods()
    assert remembered(judged, weight=1.0).snapshot(1.0).neighbourhoods()


def test_a_few_bad_prompts_are_found_among_many_others_nearby_that_are_fine() -> None:
    memory, n = RecentMemory(Reach(far=0.0, near=1.0), 4), 300
    fine = around(0, n, spread=0.4)
    good = (np.random.default_rng(0).random(n) < 0.9).astype(np.float64)
    memory.add(fine, outcomes(1, good), np.full((n, 3), 0.9, np.float32), np.ones(n), np.zeros(n))
    bad = around(0, 12, spread=0.02)
    memory.add(bad, outcomes(1, np.zeros(12)), np.full((12, 3), 0.9, np.float32), np.ones(12), np.ones(12))
    p_ok = np.full((13, 3), 0.9, np.float32)

    adjusted = memory.adjust(np.vstack([bad, around(0, 1, seed=8, spread=0.4)]), p_ok, now=2.0)

    assert adjusted[:12, 0].max() < 0.5
    assert adjusted[12, 0] > 0.7


def test_outcomes_expire_and_with_them_the_repair() -> None:
    embeddings, p_ok = prompts()
    memory = remembered(np.zeros(12), at=DAY)
    assert memory.adjust(embeddings, p_ok, now=7.9 * DAY)[0, 0] < 0.5
    np.testing.assert_array_equal(memory.adjust(embeddings, p_ok, now=8.1 * DAY), p_ok)
    assert len(memory) == 0


def test_a_snapshot_stays_what_it_was() -> None:
    embeddings, p_ok = prompts()
    memory = remembered(np.zeros(12))
    before = memory.snapshot(1.0)
    memory.add(around(5, 12), outcomes(2, np.zeros(12)), np.full((12, 3), 0.9, np.float32), np.ones(12), np.ones(12))
    assert before.adjust(embeddings, p_ok)[1, 1] == np.float32(0.9)
    assert memory.snapshot(1.0).adjust(embeddings, p_ok)[1, 1] < 0.25


def test_one_prompt_and_many_get_the_same() -> None:
    snapshot = remembered((np.random.default_rng(3).random(80) < 0.3).astype(np.float64)).snapshot(1.0)
    embeddings = np.vstack([around(0, 20, seed=4, spread=0.15), around(1, 20, seed=4)])
    p_ok = np.random.default_rng(5).uniform(0.2, 1.0, (40, 3)).astype(np.float32)

    together = snapshot.adjust(embeddings, p_ok)
    alone = np.vstack([snapshot.adjust(e[None], p[None]) for e, p in zip(embeddings, p_ok, strict=True)])

    assert (together < p_ok).any()
    assert (together <= p_ok).all()
    np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_no_more_is_kept_than_fits_and_the_oldest_goes_first() -> None:
    memory = RecentMemory(REACH, 4, RecentSettings(capacity=10))
    for start in range(0, 24, 6):
        at = np.arange(start, start + 6, dtype=float)
        memory.add(around(0, 6), outcomes(1, np.zeros(6)), np.full((6, 3), 0.9, np.float32), np.ones(6), at)
    assert len(memory) == 10
    [found] = memory.snapshot(30.0).neighbourhoods()
    assert (found.oldest, found.newest) == (14.0, 23.0)


def test_a_neighbourhood_says_what_was_seen_and_expected() -> None:
    [found] = remembered(np.array([0.0] * 9 + [1.0]), at=5.0).snapshot(6.0).neighbourhoods()
    assert found.tier == 1
    assert found.answers == pytest.approx(10, abs=0.5)
    assert found.worse == pytest.approx(9, abs=0.5)
    assert found.expected == pytest.approx(1, abs=0.1)
    assert found.evidence >= 100
    assert found.factor == pytest.approx((2 + 1) / (2 + 9), abs=0.05)
    assert found.expires == 5.0 + 7 * DAY


def test_what_is_near_is_read_off_the_encoders_own_cosines() -> None:
    vectors = np.vstack([around(axis, 40, seed=axis, spread=0.08) for axis in range(30)])
    labels = np.ones((len(vectors), 1), np.float32)
    reach = Reach.of(Memory.build(vectors, labels, np.ones(len(vectors), np.float32), np.ones(1, np.float32)))
    own, other = around(0, 1, seed=99, spread=0.08), around(3, 1, seed=99, spread=0.08)
    assert reach.nearness(own @ vectors[:40].T).mean() > 0.5
    assert reach.nearness(other @ vectors[:40].T).mean() < 0.1
