"""Evidence by betting: few false alarms under continuous monitoring, and quick detection."""

import numpy as np
import pytest

from quality.comparison.decision_gain import reference_serving
from quality.comparison.paired_outcomes import most_difference
from quality.rollout.rollout import RolloutSettings
from quality.statistics import evidence, wealth


def test_false_gains_are_rare_under_continuous_monitoring() -> None:
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


@pytest.mark.parametrize(
    ("other", "loss", "least", "most"),
    [(0.2, 0.0, 0.0, 0.05), (0.2, 0.02, 0.0, 0.1), (0.3, 0.1, 0.6, 0.95), (0.5, 0.25, 0.99, 1.0)],
    ids=["no harm", "2 points", "10 points", "25 points"],
)
def test_a_rollout_finds_large_losses_and_misses_small_ones(
    other: float, loss: float, least: float, most: float
) -> None:
    """Of versions that choose another tier for a share `other` of the prompts and lose `loss` on all, the share that a
    canary of 100 probes or a watch of 500 takes back; as docs/quality-loop.md says."""
    rng, settings, taken_back = np.random.default_rng(3), RolloutSettings(), 0
    for _ in range(200):
        worse = np.where(rng.random(500) < 0.5 + loss / (2 * other), 1.0, -1.0)
        harm = wealth(np.where(rng.random(500) < other, worse, 0.0), most_difference(reference_serving(4)))
        canary = harm[: settings.patience].max() >= 2 / settings.stop_level
        taken_back += canary or harm.max() >= 1 / settings.rollback_level

    assert least <= taken_back / 200 <= most
