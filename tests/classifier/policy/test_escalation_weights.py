"""When an answer is worth another by a higher tier: by the objective, and within the maximum cost."""

import msgspec
import pytest

from classifier.decision import PolicyInputs, Prediction
from classifier.policy.utility import weigh_escalation


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
    ("p_ok", "left_usd", "advantage"),
    [([0.3, 0.5, 0.9, 1.0], 0.0, 0.4 - 0.1 / 3), ([0.3, 0.95, 0.5, 1.0], 0.0, -0.45 - 0.1 / 3),
     ([0.3, 0.5, 0.9, 1.0], 0.003, 0.4 - 0.1 / 3 + 0.01), ([0.1, 0.6, 0.61, 1.0], 0.0, 0.01 - 0.1 / 3)],
)  # fmt: skip
def test_the_advantage_is_the_higher_tiers_utility_less_that_of_finishing(
    p_ok: list[float], left_usd: float, advantage: float
) -> None:
    found = weigh_escalation(inputs(), 2, [3], p_ok, left_usd)
    assert found.advantage == pytest.approx(advantage)
    assert found.better == ((3,) if advantage > 0 else ())
    assert found.reason == (
        f"P(good enough) is {p_ok[1]:.3f} for this answer and {p_ok[2]:.3f} for tier 3; with the costs from here on, "
        f"their utilities are {p_ok[1] - 10 / 3 * left_usd:.3f} and {p_ok[2] - 0.1 / 3:.3f}"
    )


def test_on_the_first_day_an_answer_that_is_good_enough_by_its_class_is_not_replaced() -> None:
    first_day = msgspec.structs.replace(inputs().prediction, kind="prior")
    given = msgspec.structs.replace(inputs(), prediction=first_day)
    assert weigh_escalation(inputs(), 1, [2], [0.75, 0.95, 0.9, 1.0], 0.0).advantage > 0
    assert weigh_escalation(given, 1, [2], [0.75, 0.95, 0.9, 1.0], 0.0).advantage < 0


@pytest.mark.parametrize(
    ("left_usd", "most", "escalates"),
    [(0.0, 0.0125, True), (0.0, 0.0124, False), (0.001, 0.0115, True), (0.001, 0.0114, False), (9.0, 0.01, True),
     (9.0, 0.0099, False)],
)  # fmt: skip
def test_what_was_spent_and_the_higher_tiers_cost_stay_within_the_maximum(
    left_usd: float, most: float, escalates: bool
) -> None:
    found = weigh_escalation(inputs(most), 2, [3], [0.1, 0.2, 0.9, 1.0], left_usd)
    assert (found.advantage > 0) == escalates
    if not escalates:
        spent = max(0.0025 - left_usd, 0.0)
        assert (found.advantage, found.reason) == (
            0.0, f"both answers together would cost ${spent + 0.01:.6f}, which is above the maximum"
        )  # fmt: skip


def test_the_tier_that_is_worth_most_takes_over_and_not_the_next_dearer_one() -> None:
    p_ok = [0.1, 0.5, 0.75, 1.0]
    # At 0.1 of a strongest price: 0.492, 0.717 and 0.9.
    found = weigh_escalation(inputs(), 1, [2, 3, 4], p_ok, 0.0)
    assert found.better == (4, 3, 2)
    assert found.reason.startswith("P(good enough) is 0.100 for this answer and 1.000 for tier 4; ")
    # Where a strongest answer is worth less than it costs more, the cheaper one is, and a bound on costs leaves it.
    cheap = msgspec.structs.replace(inputs(), quality_target=0.2)
    assert weigh_escalation(cheap, 1, [2, 3, 4], p_ok, 0.0).better == (3, 2, 4)
    assert weigh_escalation(inputs(0.0125), 1, [2, 3, 4], p_ok, 0.0).better == (3, 2)
    assert weigh_escalation(inputs(), 1, [2, 3], [0.1, 0.8, 0.81, 1.0], 0.0).better == (2, 3)
