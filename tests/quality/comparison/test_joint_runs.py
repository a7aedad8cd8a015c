"""Which two models serve runs of agents: a clear pair is found, and nothing else is said to pay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.comparison.joint_runs import (
    Check,
    RunOutcomes,
    checked_pairs,
    decide,
    lottery,
    ordered_pairs,
    prior_pairs,
    true_gains,
    why_shuffled,
)
from quality.comparison.session_pairs import LEAST_TASKS, Ways

CHECK = Check(0.7, 0.1)
BLIND = Check(0.4, 0.4)
MODELS = ("cheap", "middle", "dear", "odd")


def ladder(tasks: int, seed: int = 0) -> RunOutcomes:
    """Harder tasks are solved by dearer models: 50%, 60% and 90%; the odd one is dear and solves what is easy."""
    rng = np.random.default_rng(seed)
    hard = (rng.permutation(tasks) + 0.5) / tasks
    noise = rng.uniform(-0.1, 0.1, (tasks, 4))
    resolved = (hard[:, None] + noise < np.array([0.5, 0.6, 0.9, 0.4])).astype(np.float64)
    usd = np.array([0.1, 0.5, 1.0, 2.0]) * rng.uniform(0.8, 1.2, (tasks, 4))
    return RunOutcomes(MODELS, resolved, usd)


def place(first: str, second: str) -> int:
    pairs = list(zip(*ordered_pairs(len(MODELS)), strict=True))
    return pairs.index((MODELS.index(first), MODELS.index(second)))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 3)), min_size=2, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(0.01, 3),
)
def test_no_mix_of_models_at_the_same_dollars_beats_the_lottery(
    models: list[tuple[float, float]], weights: list[float], at: float
) -> None:
    resolved, usd = (np.array(side) for side in zip(*models, strict=True))
    best = float(lottery(resolved, usd, np.array([at]))[0])
    mix = np.array(weights[: len(models)])
    if mix.sum() > 0 and (mix / mix.sum()) @ usd <= at:
        assert (mix / mix.sum()) @ resolved <= best + 1e-9
    assert best <= float(resolved.max()) + 1e-9


def test_a_pair_behind_a_check_has_the_expected_outcome_and_dollars_of_its_runs() -> None:
    outcomes = RunOutcomes(("a", "b"), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 10.0], [1.0, 10.0]]))
    pairs = checked_pairs(outcomes, CHECK)
    assert pairs.resolved[:, 0] == pytest.approx([0.9, 0.7])
    assert pairs.usd[:, 0] == pytest.approx([1 + 0.1 * 10, 1 + 0.7 * 10])


def test_a_pair_that_clearly_gains_is_found_in_its_order() -> None:
    decision = decide(ladder(300), CHECK)
    assert (decision.verdict, decision.first, decision.second) == ("pays", "cheap", "dear")
    truth = true_gains(ladder(300), CHECK)[place("cheap", "dear")]
    assert 0 < decision.low < decision.gain <= truth + 1e-9
    assert decision.eliminated > 0


def test_a_check_that_knows_nothing_pays_nowhere() -> None:
    """A control: which result the check rejects has nothing to do with its outcome."""
    outcomes = ladder(300)
    assert true_gains(outcomes, BLIND).max() <= 1e-9
    decision = decide(outcomes, BLIND)
    assert (decision.verdict, decision.low < 0) == ("does_not_pay", True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        dealt = rng.permuted(outcomes.resolved, axis=0)
        assert decide(outcomes, CHECK, seen=dealt).verdict == "does_not_pay"


def test_where_the_best_pair_gains_nothing_few_draws_say_that_it_pays() -> None:
    """The hardest case: the check is so good that the best of all pairs just equals the lottery."""
    everything = ladder(600)
    low, high = 0.1, 0.7
    for _ in range(30):
        middle = (low + high) / 2
        gains = true_gains(everything, Check(middle, 0.1)).max() > 0
        low, high = (low, middle) if gains else (middle, high)
    check, rng = Check(low, 0.1), np.random.default_rng(1)
    assert -0.001 < true_gains(everything, check).max() <= 0
    wrong = 0
    for _ in range(60):
        rows = rng.integers(0, 600, 60)
        seen = RunOutcomes(MODELS, everything.resolved[rows], everything.usd[rows])
        wrong += decide(seen, check).verdict == "pays"
    # 2.5% are expected at most; a tenth allows for chance.
    assert wrong <= 6


def test_rows_that_do_not_belong_together_name_no_pair() -> None:
    outcomes, rng = ladder(300), np.random.default_rng(0)
    assert why_shuffled(outcomes) == ""
    between_tasks = outcomes._replace(resolved=rng.permuted(outcomes.resolved, axis=0))
    order = rng.permuted(np.tile(np.arange(4), (300, 1)), axis=1)
    between_models = RunOutcomes(
        MODELS, np.take_along_axis(outcomes.resolved, order, 1), np.take_along_axis(outcomes.usd, order, 1)
    )
    for shuffled, word in ((between_tasks, "which tasks are hard"), (between_models, "good or dear")):
        assert word in why_shuffled(shuffled)
        assert decide(shuffled, CHECK).verdict == "does_not_pay"


def test_few_tasks_say_nothing_and_fewer_than_two_are_refused() -> None:
    assert decide(ladder(LEAST_TASKS - 1), CHECK).verdict == "does_not_pay"
    with pytest.raises(ValueError, match="1 tasks"):
        decide(ladder(1), CHECK)


def test_before_any_outcome_the_prior_is_by_dollars_and_by_public_scores() -> None:
    usd = np.array([0.1, 0.5, 1.0, 2.0])
    first, second = ordered_pairs(4)
    best = prior_pairs(usd, CHECK)[0]
    assert usd[first[best]] < usd[second[best]]
    # By its score the dearest is no better than the cheapest.
    scored = prior_pairs(usd, CHECK, np.array([0.5, 0.55, 0.9, 0.4]))[0]
    assert (MODELS[first[scored]], MODELS[second[scored]]) == ("cheap", "dear")


def test_what_the_prior_names_moves_no_bound_below_its_own_level() -> None:
    """The prior has half of the error probability: a clear pair is found with it, without it, and against it."""
    outcomes = ladder(300)
    best, wrong = place("cheap", "dear"), place("odd", "middle")
    for prior in ([], [best], [wrong]):
        decision = decide(outcomes, CHECK, prior)
        assert (decision.verdict, decision.first, decision.second) == ("pays", "cheap", "dear")
    assert isinstance(checked_pairs(outcomes, CHECK), Ways)
