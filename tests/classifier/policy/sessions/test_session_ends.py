"""Ends and trouble: which signs count, what is drawn at random, and what is learned only once it is shown to help."""

import random

import pytest

from classifier.policy.sessions.learned_ends import EndSituation, LearnedEnds
from classifier.policy.sessions.remaining_steps import PRIOR_STEPS, RemainingSteps
from classifier.policy.sessions.session_view import LoopCounters
from classifier.policy.sessions.trouble import trouble_move, trouble_signs
from classifier.policy.sessions.work_end import EndSigns, WorkEnd, work_end

TROUBLED = LoopCounters(steps=6, errors=4)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (EndSigns(), WorkEnd("none", "none")),
        (EndSigns(clean=True, exit_passed=True), WorkEnd("none", "none")),
        (EndSigns(clean=False, check_passed=True), WorkEnd("bad", "unclean")),
        (EndSigns(check_passed=False, user="accepts"), WorkEnd("bad", "check")),
        (EndSigns(check_passed=True, exit_passed=False), WorkEnd("good", "check")),
        (EndSigns(exit_passed=False), WorkEnd("bad", "exit_code")),
        (EndSigns(check_passed=True, user="rejects"), WorkEnd("bad", "rejected")),
        (EndSigns(check_passed=True, cut=True), WorkEnd("bad", "cut")),
        (EndSigns(user="accepts"), WorkEnd("good", "accepted")),
    ],
)
def test_what_the_user_says_outweighs_checks_and_checks_outweigh_exit_codes(signs: EndSigns, expected: WorkEnd) -> None:
    assert work_end(signs) == expected


@pytest.mark.parametrize(
    ("counters", "is_trouble"),
    [
        (LoopCounters(steps=4, errors=4, repeats=9), False),
        (LoopCounters(steps=5, errors=2), False),
        (LoopCounters(steps=5, errors=3), True),
        (LoopCounters(steps=20, repeats=3), True),
        (LoopCounters(steps=20, exits=4, failed_exits=4), False),
        (LoopCounters(steps=20, exits=8, failed_exits=4), True),
    ],
)
def test_trouble_begins_with_step_five(counters: LoopCounters, is_trouble: bool) -> None:
    assert bool(trouble_signs(counters)) is is_trouble


def test_observed_trouble_moves_the_stated_share_of_consenting_sessions_with_its_propensity() -> None:
    assert trouble_move("off", TROUBLED, True, 0.2, 0.0) is None
    assert trouble_move("observe", LoopCounters(steps=6), True, 0.2, 0.0) is None
    acted = trouble_move("act", TROUBLED, False, 0.0, 0.9)
    assert acted is not None
    assert acted.moves
    assert acted.propensity == 1
    without_consent = trouble_move("observe", TROUBLED, False, 0.2, 0.0)
    assert without_consent is not None
    assert not without_consent.moves
    assert without_consent.propensity == 1

    moves = [trouble_move("observe", TROUBLED, True, 0.2, draw / 100) for draw in range(100)]

    assert sum(one is not None and one.moves for one in moves) == 20
    # Weighted by their propensities both arms stand for all sessions.
    assert sum(1 / one.propensity for one in moves if one is not None) == pytest.approx(200)


def observed(table: LearnedEnds, sessions: int, p_bad: tuple[float, float], seed: int = 3) -> None:
    drawn = random.Random(seed)
    for _ in range(sessions):
        in_trouble = drawn.random() < 0.5
        situation = EndSituation(drawn.choice((5, 10, 20)), in_trouble, "unknown")
        table.observe(1, "codex", situation, bad=drawn.random() < p_bad[in_trouble])


def test_ends_are_predicted_once_the_signs_beat_the_step_alone_on_labels_not_yet_learned() -> None:
    table = LearnedEnds()
    calm, troubled = (EndSituation(10, sign, "unknown") for sign in (False, True))
    observed(table, 199, (0.2, 0.8))
    assert table.predict(1, "codex", troubled) is None

    observed(table, 200, (0.2, 0.8), seed=4)

    seen = [table.predict(1, "codex", one) for one in (calm, troubled)]
    assert seen == [pytest.approx(0.2, abs=0.1), pytest.approx(0.8, abs=0.1)]
    assert table.predict(2, "codex", troubled) is None
    assert table.predict(1, "aider", troubled) is None


@pytest.mark.parametrize("p_bad", [(0.5, 0.5), (0.02, 0.1)])
def test_signs_that_tell_nothing_or_too_few_bad_ends_leave_the_table_unused(p_bad: tuple[float, float]) -> None:
    table = LearnedEnds()
    observed(table, 400, p_bad)

    assert not table.evidence(1, "codex").is_active
    assert table.predict(1, "codex", EndSituation(10, True, "unknown")) is None


def test_remaining_steps_go_from_the_prior_to_the_keys_own_sessions() -> None:
    learned = RemainingSteps()
    assert learned.predict("codex", "key", 1) == PRIOR_STEPS
    for _ in range(200):
        learned.observe("codex", "key", 60)

    assert learned.predict("codex", "key", 1) == pytest.approx(60, abs=0.5)
    assert learned.predict("codex", "key", 41) == pytest.approx(20, abs=0.5)
    # Another key of the client, another client: each a level less.
    assert learned.predict("codex", "other", 1) == pytest.approx(60, abs=1)
    assert PRIOR_STEPS < learned.predict("aider", "key", 1) < 60
    assert learned.predict("codex", "key", 900) >= 1
