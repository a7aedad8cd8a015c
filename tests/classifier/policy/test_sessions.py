"""Sessions: what a turn costs on a tier, which signs of an end or of trouble count, and what is learned of them."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.policy.sessions import (
    PRIOR_STEPS,
    STEP_EDGES,
    EndEvidence,
    EndSigns,
    EndSituation,
    LearnedEnds,
    LoopCounters,
    RemainingSteps,
    SessionTier,
    TroubleMove,
    Warmth,
    WorkEnd,
    step_bucket,
    trouble_move,
    trouble_signs,
    turn_usd,
    warm_tokens,
    work_end,
)

TIER = SessionTier(
    input_usd=1.0, output_usd=5.0, read_usd=0.1, write_usd=1.25, cache_seconds=300, min_cached_tokens=1024
)  # fmt: skip


@given(st.integers(100, 150_000), st.integers(0, 150_000), st.integers(0, 50_000), st.floats(1, 90), st.floats(0, 600))
def test_more_cached_tokens_never_make_a_turn_dearer(
    prompt: int, cached: int, more: int, steps: float, age: float
) -> None:
    before, after = (
        turn_usd(TIER, warm_tokens(TIER, Warmth(tokens, age), prompt), prompt, 1000, 400, steps)
        for tokens in (cached, cached + more)
    )

    assert after <= before * (1 + 1e-9)


def test_a_cache_older_than_its_lifetime_or_a_prompt_too_short_for_it_is_cold() -> None:
    assert warm_tokens(TIER, Warmth(9000, 299), 20_000) == 9000
    assert warm_tokens(TIER, Warmth(9000, 301), 20_000) == 0
    assert warm_tokens(TIER, Warmth(1000, 1), 1023) == 0


def test_a_turns_price_counts_reads_writes_and_answers() -> None:
    # One step: 40,000 read at 0.1, 10,000 written at 1.25, 400 answered at 5 US dollars a million.
    assert turn_usd(TIER, 40_000, 50_000, 1000, 400, 1) == pytest.approx(0.004 + 0.0125 + 0.002)
    # Without a cache all is input.
    bare = msgspec.structs.replace(TIER, cache_seconds=0)
    assert turn_usd(bare, 40_000, 50_000, 1000, 400, 1) == pytest.approx(0.05 + 0.002)


def test_the_last_second_of_a_cache_and_the_shortest_prompt_for_it_are_warm() -> None:
    assert warm_tokens(TIER, Warmth(9000, 300), 20_000) == 9000
    assert warm_tokens(TIER, Warmth(9000, 1), 1024) == 1024


def test_each_later_step_reads_what_the_step_before_wrote_and_writes_what_it_grew_by() -> None:
    # Three steps of 50,000, 51,000 and 52,000 on average, as the spread of a geometric number gives them: 156,000 and
    # twice 1,000 times 3 more, of which 10,000 + 2,000 are written.
    total, written = 3 * 50_000 + 1000 * 2 * 3, 10_000 + 2000
    paid = 1.25 * written + 0.1 * (total - written)
    half = msgspec.structs.replace(TIER, output_ratio=0.5)
    assert turn_usd(TIER, 40_000, 50_000, 1000, 400, 3) == pytest.approx((paid + 5.0 * 400 * 3) / 1e6)
    assert turn_usd(half, 40_000, 50_000, 1000, 400, 3) == pytest.approx((paid + 5.0 * 200 * 3) / 1e6)
    # No more is warm than the prompt has.
    assert turn_usd(TIER, 90_000, 50_000, 0, 0, 1) == pytest.approx(0.1 * 50_000 / 1e6)


def test_a_cache_of_a_second_is_one_and_without_one_all_has_the_price_of_input_to_the_last_digit() -> None:
    dear = msgspec.structs.replace(TIER, input_usd=3.0)
    for seconds, usd in ((1, 1.25 * 50_000), (0, 3.0 * 50_000), (-1, 3.0 * 50_000)):
        tier = msgspec.structs.replace(dear, cache_seconds=seconds)
        assert turn_usd(tier, 0, 50_000, 0, 0, 1) == pytest.approx(usd / 1e6, rel=1e-12)


def test_prompts_that_stay_too_short_for_the_cache_are_all_input() -> None:
    # The last of three steps has 1,023 tokens, or 1,024.
    assert turn_usd(TIER, 0, 823, 100, 0, 3) == pytest.approx((3 * 823 + 100 * 6) / 1e6)
    written = 824 + 200
    assert turn_usd(TIER, 0, 824, 100, 0, 3) == pytest.approx(
        (1.25 * written + 0.1 * (3 * 824 + 100 * 6 - written)) / 1e6
    )


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
        (EndSigns(clean=False, user="interrupts"), WorkEnd("bad", "interrupted")),
        (EndSigns(exit_passed=False, user="accepts"), WorkEnd("bad", "exit_code")),
        (EndSigns(exit_passed=True, user="accepts"), WorkEnd("good", "accepted")),
        (EndSigns(check_passed=True, user="accepts"), WorkEnd("good", "accepted")),
        (EndSigns(check_passed=True), WorkEnd("good", "check")),
        (EndSigns(check_passed=True, build_passed=False), WorkEnd("bad", "build")),
        (EndSigns(check_passed=False, build_passed=True), WorkEnd("bad", "check")),
        (EndSigns(build_passed=True, exit_passed=False), WorkEnd("good", "build")),
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


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        (LoopCounters(steps=6, errors=3, repeats=3), "3 errors in 6 steps"),
        (LoopCounters(steps=7, errors=3, repeats=3), "3 repeated calls in 7 steps"),
        (LoopCounters(steps=7, repeats=2), ""),
        (LoopCounters(steps=7, exits=5, failed_exits=3), "3 of 5 exit codes failed"),
        (LoopCounters(steps=7, exits=6, failed_exits=3), "3 of 6 exit codes failed"),
        (LoopCounters(steps=7, exits=7, failed_exits=3), ""),
    ],
)
def test_trouble_is_said_in_words(counters: LoopCounters, words: str) -> None:
    assert trouble_signs(counters) == words


def test_trouble_that_is_observed_is_written_down_where_nothing_is_drawn() -> None:
    calm = LoopCounters(steps=6)
    assert trouble_move("act", calm, True, 0.2, 0.0) is None
    assert trouble_move("observe", TROUBLED, True, 0.0, 0.0) == TroubleMove("4 errors in 6 steps", False, 1.0)
    assert trouble_move("observe", TROUBLED, True, 0.2, 0.2) == TroubleMove("4 errors in 6 steps", False, 0.8)
    assert trouble_move("observe", TROUBLED, True, 0.2, 0.1) == TroubleMove("4 errors in 6 steps", True, 0.2)


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


def test_a_bucket_begins_with_its_edge() -> None:
    assert [step_bucket(edge) for edge in STEP_EDGES] == list(range(7))
    assert [step_bucket(step) for step in (0, 2, 5, 20, 80, 900)] == [0, 0, 1, 3, 5, 6]


def test_each_level_of_the_remaining_steps_weighs_as_much_as_twenty_sessions_of_the_one_above() -> None:
    learned = RemainingSteps()
    learned.observe("codex", "key", 10)
    # A session of ten steps had ten left at its first, five at its sixth, and never came to its eleventh.
    for step, left in ((1, 10), (6, 5)):
        first = (20 * 18.0 + left) / 21
        second = (20 * first + left) / 21
        assert learned.predict("codex", "key", step) == pytest.approx((20 * second + left) / 21)
        assert learned.predict("codex", "other", step) == pytest.approx(second)
        assert learned.predict("aider", "key", step) == pytest.approx(first)
    assert learned.predict("codex", "key", 11) == 18.0
    learned = RemainingSteps()
    for _ in range(2000):
        learned.observe("codex", "key", 1)
    assert learned.predict("codex", "key", 1) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("bad", [True, False])
def test_what_labels_show_is_their_mean_gain_with_its_standard_error(bad: bool) -> None:
    table, place = LearnedEnds(), EndSituation(10, True, "failed")
    assert table.evidence(1, "codex") == EndEvidence(0.0, 0.0, 0.0, math.inf, False)
    table.observe(1, "codex", place, bad=True)
    # One label has no error.
    assert table.evidence(1, "codex") == EndEvidence(1.0, 1.0, 0.0, math.inf, False)
    table.observe(1, "codex", EndSituation(30, True, "failed"), bad=False, weight=0.5)
    table.observe(1, "codex", place, bad=bad, weight=0.5)

    # By hand: three levels from one half, each with ten pseudo-labels of the one above; the first label is predicted
    # alike by both, the second from all ends alone, the third from its bucket and its signs.
    def moved(rate: float, bad: float, labels: float) -> float:
        return (10 * rate + bad) / (10 + labels)

    by_steps = moved(moved(0.5, 1.0, 1.5), 1.0, 1.0)
    by_signs = moved(by_steps, 1.0, 1.0)
    third = math.log(by_signs / by_steps) if bad else math.log((1 - by_signs) / (1 - by_steps))
    gain = 0.5 * third / 2
    found = table.evidence(1, "codex")
    assert (found.labels, found.bad, found.is_active) == (2.0, 1.5 if bad else 1.0, False)
    assert found.gain == pytest.approx(gain)
    assert found.standard_error == pytest.approx(math.sqrt((0.5 * third**2 / 2 - gain**2) / 2))


@pytest.mark.parametrize(("bad", "labels", "used"), [(30, 200, True), (29, 200, False), (170, 200, True),
                                                      (171, 200, False), (30, 199, False)])  # fmt: skip
def test_ends_are_predicted_from_200_labels_with_30_of_each_kind_on(bad: int, labels: int, used: bool) -> None:
    table = LearnedEnds()
    for number in range(labels):
        # The signs say all, so that they help as soon as they may.
        is_bad = number * bad // labels != (number + 1) * bad // labels
        table.observe(1, "codex", EndSituation(10, is_bad, "unknown"), bad=is_bad)
    assert table.evidence(1, "codex").labels == labels
    assert table.evidence(1, "codex").is_active is used
    assert (table.predict(1, "codex", EndSituation(10, True, "unknown")) is not None) is used
