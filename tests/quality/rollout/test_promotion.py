"""Promotion: only a significant gain on rows unseen by both counts, and every guard can refuse."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from classifier.features.surface_features import FEATURE_NAMES
from classifier.local.cells import Labels
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import load_artefact
from classifier.training.metrics import metrics
from quality.comparison.association import Association
from quality.comparison.decision_gain import reference_serving, utility_gains
from quality.rollout.promotion_gate import Judgement, Predicted, judge_candidate, tier_calibration
from quality.statistics import ECE_TOLERANCE
from tests.quality.retraining.tiny_classifier import base_artefact

ROWS = 600
SERVING = reference_serving(4)
Float = npt.NDArray[np.floating]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OutcomeModel:
    return load_artefact(base_artefact(tmp_path_factory.mktemp("shipped")))


@pytest.fixture(scope="module")
def labels(model: OutcomeModel) -> Labels:
    """Verified answers of tier 1: every second one is as good as the strongest tier's."""
    embedding = np.random.default_rng(0).normal(size=(ROWS, model.encoder.dim)).astype(np.float32)
    scores = np.full((ROWS, 3), np.nan, np.float32)
    scores[:, 0] = np.arange(ROWS) % 2
    return Labels(
        classes=np.full((ROWS, 4), 0.25, np.float32),
        whole=np.full((ROWS, 4), 0.25, np.float32),
        embedding=embedding / np.linalg.norm(embedding, axis=1, keepdims=True),
        surface=np.zeros((ROWS, len(FEATURE_NAMES)), np.float32),
        scores=scores,
        weights=np.ones((ROWS, 3), np.float32),
        key=np.zeros(ROWS, np.int32),
        context=np.full(ROWS, -1, np.int32),
        tenant=np.full(ROWS, -1, np.int32),
        private=np.zeros(ROWS, np.bool_),
    )


def knowing(labels: Labels, sure: float) -> Float:
    """Probabilities that give the actual outcome P `sure`."""
    known: Float = np.where(np.nan_to_num(labels.scores) > 0.5, sure, 1 - sure)
    return known


def judged(model: OutcomeModel, labels: Labels, ours: Float, theirs: Float, p: float = 0.004) -> Judgement:
    """`p`: of the labels if they did not depend on their prompts."""
    predicted = Predicted(ours, theirs, np.full(ours.shape, 0.5))
    return judge_candidate(model, model, labels, predicted, SERVING, Association(p, 0.005))


def test_probabilities_that_are_nearer_to_the_outcomes_are_promoted(model: OutcomeModel, labels: Labels) -> None:
    judgement = judged(model, labels, knowing(labels, 0.95), knowing(labels, 0.6))

    assert judgement.promote, judgement.reasons
    assert judgement.gain is not None
    assert judgement.gain.low > 0


def test_a_candidate_no_nearer_than_the_incumbent_is_refused(model: OutcomeModel, labels: Labels) -> None:
    for ours in (0.8, 0.9):
        judgement = judged(model, labels, knowing(labels, ours), knowing(labels, 0.9))
        assert any("better than the incumbent: utility above by " in reason for reason in judgement.reasons)


def test_labels_that_are_not_shown_to_depend_on_prompts_refuse_every_candidate(
    model: OutcomeModel, labels: Labels
) -> None:
    for p, is_refused in ((0.005, False), (0.0051, True)):
        judgement = judged(model, labels, knowing(labels, 0.95), knowing(labels, 0.6), p)
        assert judgement.association == p
        refusals = [reason for reason in judgement.reasons if "depend on their prompts: p = 0.005" in reason]
        assert judgement.reasons == refusals
        assert bool(refusals) is is_refused


def test_a_candidate_that_decides_as_the_incumbent_does_is_refused_however_much_nearer_it_is(
    model: OutcomeModel, labels: Labels
) -> None:
    """All of these probabilities are far from the target of 0.7."""
    judgement = judged(model, labels, knowing(labels, 0.99), np.where(knowing(labels, 1.0) > 0.5, 0.85, 0.4))
    assert judgement.gain is not None
    assert judgement.utility is not None
    assert judgement.gain.low > 0
    assert judgement.utility == (0.0, 0.0, 0.0)
    assert any("better than the incumbent: " in reason for reason in judgement.reasons)


def test_a_candidate_that_is_nearer_and_decides_neither_better_nor_worse_is_promoted(
    model: OutcomeModel, labels: Labels
) -> None:
    """On 60 rows decisions differ, as often for the better as for the worse."""
    theirs = np.where(knowing(labels, 1.0) > 0.5, 0.99, 0.5)
    ours = knowing(labels, 0.99)
    high = (np.arange(60) % 4 < 2)[:, None]
    ours[:60], theirs[:60] = np.where(high, 0.8, 0.6), np.where(high, 0.6, 0.8)
    judgement = judged(model, labels, ours, theirs)
    assert judgement.utility is not None
    assert judgement.utility.low < 0 < judgement.utility.high
    assert judgement.reasons == []


def test_certainly_worse_than_the_tiers_rates_is_refused(model: OutcomeModel, labels: Labels) -> None:
    for sure, is_worse in ((0.4, True), (0.55, False)):
        judgement = judged(model, labels, knowing(labels, sure), knowing(labels, 0.1))
        assert any("certainly worse than the tiers' own rates" in reason for reason in judgement.reasons) is is_worse


def test_too_few_rows_say_nothing(model: OutcomeModel, labels: Labels) -> None:
    few = labels.take(np.arange(40))
    judgement = judged(model, few, knowing(few, 0.95), knowing(few, 0.6))
    assert judgement.reasons == ["40 newer rows; a comparison needs at least 50"]


def test_a_candidate_that_ruins_one_kind_of_prompts_is_refused_though_the_others_gain(
    model: OutcomeModel, labels: Labels
) -> None:
    hard = np.arange(ROWS) % 10 < 1
    classes = np.where(hard[:, None], [0.0, 0.1, 0.2, 0.7], [0.7, 0.2, 0.1, 0.0]).astype(np.float32)
    labels = replace(labels, classes=classes)
    ours = knowing(labels, 0.99)
    ours[hard] = 1 - ours[hard]

    judgement = judged(model, labels, ours, knowing(labels, 0.6))

    worst = judgement.classes[0]
    assert (worst.complexity, worst.rows) == ("EXPERT", 60)
    assert any("loses on the 60 EXPERT rows" in reason for reason in judgement.reasons)


def test_probabilities_far_from_what_happens_are_refused_unless_the_incumbents_are_farther(
    model: OutcomeModel, labels: Labels
) -> None:
    honest, too_sure, surer = (np.full((ROWS, 3), p) for p in (0.5, 0.95, 1.0))
    assert any("calibration error" in reason for reason in judged(model, labels, too_sure, honest).reasons)
    assert not any("calibration error" in reason for reason in judged(model, labels, too_sure, surer).reasons)


def test_a_report_has_the_slope_of_each_tiers_probabilities(model: OutcomeModel, labels: Labels) -> None:
    """RT-06: 1 for probabilities that hold, a half for log odds that are twice too large; none for a constant."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.05, 0.95, ROWS)
    happened = (rng.random(ROWS) < p).astype(np.float32)
    seen = replace(labels, scores=np.stack([happened, happened, happened], axis=1))
    too_sure = 1 / (1 + ((1 - p) / p) ** 2)
    ours = np.stack([p, too_sure, np.full(ROWS, 0.5)], axis=1)

    slopes = [tier.slope for tier in judged(model, seen, ours, np.full(ours.shape, 0.5)).calibration]

    assert slopes[0] is not None
    assert slopes[1] is not None
    assert slopes[0].value == pytest.approx(2 * slopes[1].value, abs=0.02)
    assert 0.9 <= slopes[0].value <= 1.1
    assert slopes[0].low < 1 < slopes[0].high
    assert slopes[1].high < 0.9
    assert slopes[2] is None


def test_an_outcome_that_was_not_observed_counts_for_nothing(model: OutcomeModel, labels: Labels) -> None:
    ours = knowing(labels, 0.95)
    ours[:, 1:] = 0.0
    blind = replace(labels, scores=np.where(np.arange(3) == 0, labels.scores, np.float32(np.nan)))
    assert judged(model, blind, ours, knowing(labels, 0.6)).promote


def observed(labels: Labels, rows: int = ROWS, share: float = 0.7) -> Labels:
    """Outcomes of all three tiers, of which a row may lack some or all."""
    rng = np.random.default_rng(11)
    scores = (rng.random((ROWS, 3)) < 0.5).astype(np.float32)
    scores[rng.random((ROWS, 3)) > share] = np.nan
    return replace(labels, scores=scores).take(np.arange(rows))


def test_a_gain_is_the_mean_over_rows_of_the_mean_over_the_tiers_that_were_observed(
    model: OutcomeModel, labels: Labels
) -> None:
    seen = observed(labels)
    rng = np.random.default_rng(12)
    ours, theirs = (np.clip(knowing(seen, sure) + rng.normal(0, 0.1, (ROWS, 3)), 0, 1) for sure in (0.8, 0.7))
    number = np.maximum((~np.isnan(seen.scores)).sum(axis=1), 1)
    errors = [np.nansum((p - seen.scores) ** 2, axis=1) / number for p in (ours, theirs)]
    useful = utility_gains(seen.scores, theirs, ours, SERVING).sum(axis=1) / number
    assert {0, 1, 2, 3} == set((~np.isnan(seen.scores)).sum(axis=1))

    judgement = judged(model, seen, ours, theirs)

    for found, rows in ((judgement.gain, errors[1] - errors[0]), (judgement.utility, useful)):
        assert found is not None
        assert found.value == pytest.approx(rows.mean(), abs=1e-6)
        half = 1.96 * rows.std() / ROWS**0.5
        assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.2)
    assert judgement.classes[0].gain == pytest.approx((errors[1] - errors[0]).mean(), abs=1e-6)
    assert judgement.over_rates is not None
    by_rates = np.nansum((0.5 - seen.scores) ** 2, axis=1) / number
    assert judgement.over_rates.value == pytest.approx((by_rates - errors[0]).mean(), abs=1e-6)


def test_fifty_rows_are_enough_for_a_comparison(model: OutcomeModel, labels: Labels) -> None:
    for rows, is_enough in ((49, False), (50, True)):
        few = observed(labels, rows)
        judgement = judged(model, few, knowing(few, 0.95), knowing(few, 0.6))
        assert (judgement.gain is not None) is is_enough
        assert any("a comparison needs at least 50" in reason for reason in judgement.reasons) is not is_enough


@pytest.mark.parametrize(("ours", "theirs"), [(0.62, 0.6), (0.7, 0.6), (0.6, 0.7), (0.55, 0.02)])
def test_the_calibration_of_a_tier_with_fifty_outcomes_is_held_against_chance_and_the_incumbent(
    ours: float, theirs: float
) -> None:
    rng = np.random.default_rng(13)
    scores = (rng.random((120, 3)) < 0.6).astype(np.float32)
    # The second tier has too few, which leaves out no other.
    for tier, number in enumerate((50, 49, 90)):
        scores[number:, tier] = np.nan
    known = np.nan_to_num(scores) > 0.5
    a, b = (np.clip(np.where(known, p, 1 - p) + rng.normal(0, 0.15, scores.shape), 0.01, 0.99) for p in (ours, theirs))

    found = tier_calibration(scores, a, b, 3)

    assert [(one.tier, one.rows) for one in found] == [(1, 50), (3, 90)]
    for one in found:
        seen = ~np.isnan(scores[:, one.tier - 1])
        y, mine, its = (part[seen, one.tier - 1].astype(np.float64) for part in (scores, a, b))
        chance, before = metrics.calibration_band(mine, 3) + ECE_TOLERANCE, metrics.calibration_error(y, its)
        nearer = (y - its) ** 2 - (y - mine) ** 2
        assert one.error == round(metrics.calibration_error(y, mine), 4)
        assert one.allowed == round(max(chance, before), 4)
        assert one.sharper == (nearer.mean() > 1.96 * nearer.std(ddof=1) / len(y) ** 0.5)
        slope = metrics.calibration_slope_interval(y, mine)
        assert slope is not None
        assert one.slope == tuple(round(part, 3) for part in slope)


def test_a_gain_of_less_than_two_standard_errors_is_not_sharper_and_one_of_more_is() -> None:
    rng = np.random.default_rng(14)
    scores = np.full((100, 3), np.nan)
    scores[:, 0] = np.arange(100) % 2
    base = np.where(scores == 1, 0.6, 0.4)
    # Squared errors fall by 0.07 where it is nearer and rise by 0.09 elsewhere: by 1.4 and by 4 standard errors.
    for nearer, is_sharper in ((0.63, False), (0.75, True)):
        moved = np.where(np.arange(100) % 100 < 100 * nearer, 0.1, -0.1)[:, None]
        ours = np.where(scores == 1, base + moved, base - moved) + rng.normal(0, 0.01, base.shape)
        [found] = tier_calibration(scores, ours, base, 0)
        assert found.sharper is is_sharper


def test_the_standard_error_of_a_gain_is_that_of_a_sample() -> None:
    y = np.arange(50) % 2
    scores = np.full((50, 3), np.nan)
    scores[:, 0] = y
    # Squared errors of 0.25 fall by 0.128 or rise by 0.072: by 1.97 standard errors, were a mean alone estimated.
    distance = np.sqrt(0.25 - np.where(np.arange(50) < 25, 0.128143, -0.071857))
    ours = np.abs(y - distance)[:, None] * np.ones(3)
    [found] = tier_calibration(scores, ours, np.full((50, 3), 0.5), 0)
    assert found.sharper
