"""When an answer is worth another by a higher tier: by the target, and within the maximum cost."""

import pytest

from classifier.decision import PolicyInputs, Prediction
from classifier.policy.escalation import weigh_escalation


def inputs(max_cost_usd: float | None = None) -> PolicyInputs:
    prediction = Prediction(p_ok=[0.5, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="t")
    return PolicyInputs(
        prediction=prediction,
        costs=[0.001, 0.0025, 0.01, 0.03],
        quality_target=0.9,
        tau=0.75,
        max_cost_usd=max_cost_usd,
    )


@pytest.mark.parametrize(
    ("p_ok", "advantage"),
    [([0.3, 0.5, 0.9, 1.0], 0.25), ([0.3, 0.95, 0.5, 1.0], -0.45), ([0.3, 0.85, 0.9, 1.0], -0.1),
     ([0.1, 0.6, 0.4, 1.0], -0.2)],
)  # fmt: skip
def test_the_advantage_is_what_is_missing_to_the_target_and_at_most_what_the_higher_tier_adds(
    p_ok: list[float], advantage: float
) -> None:
    found = weigh_escalation(inputs(), 2, 3, p_ok, 0.0)
    assert found.advantage == pytest.approx(advantage)
    assert found.reason == (f"P(no worse) of this answer is {p_ok[1]:.3f}, tier 3's {p_ok[2]:.3f}; the target is 0.750")


@pytest.mark.parametrize(
    ("left_usd", "most", "escalates"),
    [(0.0, 0.0125, True), (0.0, 0.0124, False), (0.001, 0.0115, True), (0.001, 0.0114, False), (9.0, 0.01, True),
     (9.0, 0.0099, False)],
)  # fmt: skip
def test_what_was_spent_and_the_higher_tiers_cost_stay_within_the_maximum(
    left_usd: float, most: float, escalates: bool
) -> None:
    found = weigh_escalation(inputs(most), 2, 3, [0.1, 0.2, 0.9, 1.0], left_usd)
    assert (found.advantage > 0) == escalates
    if not escalates:
        spent = max(0.0025 - left_usd, 0.0)
        assert (found.advantage, found.reason) == (
            0.0, f"both answers would cost ${spent + 0.01:.6f}, above the maximum"
        )  # fmt: skip
