"""The learning curve: how labels improve the prediction of later labels, by the serving estimator."""

import numpy as np
import pytest

from classifier.complexity.classes import adequacies, like_of
from classifier.complexity.model import shipped_complexity
from classifier.local.own import LabelledRow
from quality.learning.learning import LearningCurve, checkpoints, learning_curves

TABLE = np.ascontiguousarray(adequacies(like_of(4))[:, :-1])
FEATURES = len(shipped_complexity().centre)
SIMPLE = (1.0, 0.0, 0.0, 0.0)
NAN = float("nan")


def rows(count: int, key: str, scores: list[float], seed: int = 0) -> list[LabelledRow]:
    """SIMPLE prompts of which each tier's outcome is known."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        embedding = rng.standard_normal(8).astype(np.float32)
        made.append(
            LabelledRow(
                classes=SIMPLE, embedding=embedding / np.linalg.norm(embedding),
                features=shipped_complexity().centre + rng.standard_normal(FEATURES).astype(np.float32),
                scores=scores, weights=[1.0, 1.0, 1.0], key=key, app="", at=float(number),
            )
        )  # fmt: skip
    return made


def curves(labelled: list[LabelledRow]) -> dict[str | None, LearningCurve]:
    return {one.key: one for one in learning_curves(labelled, TABLE)}


def test_each_point_is_tested_on_the_same_newest_labels() -> None:
    assert checkpoints(20) == [0, 20]
    assert checkpoints(100) == [0, 25, 50, 100]
    assert checkpoints(900) == [0, 25, 50, 100, 200, 400, 900]
    curve = curves(rows(150, "a", [0.0, 1.0, 1.0]))["a"]
    assert curve.tested == 50
    assert [point.labels for point in curve.points] == [0, 25, 50, 100]


def test_labels_that_contradict_the_shipped_estimate_lower_its_error() -> None:
    curve = curves(rows(150, "a", [0.0, 1.0, 1.0]))["a"]
    errors = [point.error for point in curve.points]
    # Without labels tier 1 is taken to be good enough for SIMPLE prompts, and here it never is.
    assert errors[0] == pytest.approx(
        ((0 - TABLE[0, 0]) ** 2 + (1 - TABLE[0, 1]) ** 2 + (1 - TABLE[0, 2]) ** 2) / 3, abs=1e-3
    )
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05
    assert curve.rate_error == 0.0


def test_a_curve_of_one_key_sees_what_other_keys_had_labelled_by_then() -> None:
    earlier, later = rows(100, "a", [0.0, 1.0, 1.0]), rows(30, "b", [0.0, 1.0, 1.0], seed=1)
    found = curves([*earlier, *later])
    assert set(found) == {None, "a", "b"}
    assert found["b"].points[0].error < 0.5 * found["a"].points[0].error
    assert found[None].tested == 43


def test_intervals_hold_their_figures_and_narrow_with_more_prompts() -> None:
    def mixed(count: int) -> LearningCurve:
        good, bad = rows(count, "a", [1.0, 1.0, 1.0]), rows(count, "a", [0.0, 1.0, 1.0], seed=1)
        return curves([one for pair in zip(good, bad, strict=True) for one in pair])["a"]

    few, many = mixed(20).points[0], mixed(200).points[0]
    for one in (few, many):
        assert one.low < one.error < one.high
    assert many.high - many.low < few.high - few.low


def test_with_few_labels_there_is_no_curve_and_a_tiers_unknown_outcomes_count_nowhere() -> None:
    assert learning_curves(rows(14, "a", [1.0, 1.0, 1.0]), TABLE) == []
    point = curves(rows(30, "a", [1.0, NAN, NAN]))["a"].points[0]
    assert point.error == pytest.approx((1 - TABLE[0, 0]) ** 2, abs=1e-3)
