"""Where a session runs: the cheapest rest at a boundary, no move without a gain, and what must move inside a loop."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.policy.sessions.choose import MOST_BAD_CALLS, MOST_FAILURES, choose_at_boundary, must_move
from classifier.policy.sessions.rest_cost import kept_share, long_write_pays, rest_usd, turn_usd, warm_tokens
from classifier.policy.sessions.session_view import LoopCounters, SessionTier, SessionView, Warmth


def tier(number: int, usd: float, **changes: float) -> SessionTier:
    made = SessionTier(
        number=number, input_usd=usd, output_usd=5 * usd, read_usd=usd / 10, write_usd=usd * 1.25,
        long_write_usd=2 * usd, cache_seconds=300, min_cached_tokens=1024, context_tokens=200_000,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


TIERS = (tier(1, 1.0), tier(2, 3.0), tier(3, 5.0))
COLD = (Warmth(), Warmth(), Warmth())


def view(current: int | None = 2, warmth: Sequence[Warmth] = COLD, **changes: object) -> SessionView:
    made = SessionView(
        current=current, warmth=tuple(warmth), prompt_tokens=50_000, growth_tokens=1000, output_tokens=400,
        turn_steps=4, remaining_steps=8,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


views = st.builds(
    view,
    st.integers(1, 3),
    st.tuples(*[st.builds(Warmth, st.integers(0, 150_000), st.floats(0, 600))] * 3),
    prompt_tokens=st.integers(100, 150_000),
    turn_steps=st.floats(1, 30),
    remaining_steps=st.floats(1, 90),
    gap_seconds=st.floats(1, 4000),
)


@given(views, st.floats(0.1, 50))
def test_a_session_never_moves_between_tiers_of_equal_price_while_its_own_cache_is_the_warmest(
    seen: SessionView, usd: float
) -> None:
    equal = [tier(number, usd) for number in (1, 2, 3)]
    current = seen.current or 1
    own = seen.warmth[current - 1]
    others = [Warmth(min(one.tokens, own.tokens), max(one.age_seconds, own.age_seconds)) for one in seen.warmth]
    others[current - 1] = own

    choice = choose_at_boundary(msgspec.structs.replace(seen, warmth=tuple(others)), equal, [1, 1, 1], 0.5)

    assert choice.tier == current


@given(views, st.tuples(*[st.floats(0, 1)] * 3), st.floats(0, 1))
def test_the_choice_reaches_the_target_wherever_a_tier_does_and_no_such_tier_is_cheaper(
    seen: SessionView, p_ok: tuple[float, ...], target: float
) -> None:
    choice = choose_at_boundary(seen, TIERS, p_ok, target)

    reaching = [k for k in range(3) if p_ok[k] >= target]
    if reaching:
        assert choice.tier - 1 in reaching
        assert choice.rest_usd[choice.tier - 1] == min(choice.rest_usd[k] for k in reaching)
    else:
        assert choice.tier == 3


@given(views, st.integers(0, 2), st.integers(0, 50_000))
def test_more_cached_tokens_never_make_a_tiers_rest_dearer(seen: SessionView, k: int, more: int) -> None:
    warmer = list(seen.warmth)
    warmer[k] = Warmth(warmer[k].tokens + more, warmer[k].age_seconds)

    before = rest_usd(seen, TIERS, [True] * 3)
    after = rest_usd(msgspec.structs.replace(seen, warmth=tuple(warmer)), TIERS, [True] * 3)

    assert all(one <= other * (1 + 1e-9) for one, other in zip(after, before, strict=True))


def test_a_short_turn_stays_on_a_warm_dearer_tier_and_a_long_one_moves_to_the_cheap_cold_one() -> None:
    warm = [Warmth(), Warmth(49_000, 20), Warmth()]
    short, long = view(2, warm, turn_steps=1, remaining_steps=1), view(2, warm, turn_steps=40, remaining_steps=40)

    assert choose_at_boundary(short, TIERS, [1, 1, 1], 0.5).tier == 2
    assert choose_at_boundary(long, TIERS, [1, 1, 1], 0.5).tier == 1


def test_a_cache_older_than_its_lifetime_or_a_prompt_too_short_for_it_is_cold() -> None:
    assert warm_tokens(TIERS[0], Warmth(9000, 299), 20_000) == 9000
    assert warm_tokens(TIERS[0], Warmth(9000, 301), 20_000) == 0
    assert warm_tokens(TIERS[0], Warmth(1000, 1), 1023) == 0


def test_a_turns_price_counts_reads_writes_and_answers() -> None:
    # One step: 40,000 read at 0.1, 10,000 written at 1.25, 400 answered at 5 US dollars a million.
    assert turn_usd(TIERS[0], 40_000, 50_000, 1000, 400, 1) == pytest.approx(0.004 + 0.0125 + 0.002)
    # Without a cache all is input.
    bare = tier(1, 1.0, cache_seconds=0)
    assert turn_usd(bare, 40_000, 50_000, 1000, 400, 1) == pytest.approx(0.05 + 0.002)


def test_a_cache_outlasts_a_pause_of_its_own_length_half_the_time() -> None:
    assert kept_share(TIERS[0], 0, 300) == pytest.approx(0.5)
    assert kept_share(TIERS[0], 0, 10) > 0.95
    assert kept_share(TIERS[0], 300, 10) == 0


def test_writes_that_last_an_hour_pay_for_long_prompts_before_pauses_between_both_lifetimes() -> None:
    # 0.75 of the input's price more for what is new, 1.15 less for all that would be lost.
    assert long_write_pays(TIERS[0], 1000, 100_000, 10_000)
    assert not long_write_pays(TIERS[0], 1000, 10_000, 10_000)
    assert not long_write_pays(TIERS[0], 5, 100_000, 10_000)
    assert not long_write_pays(TIERS[0], 1_000_000, 100_000, 10_000)


def test_a_likely_switch_back_keeps_a_session_where_it_is() -> None:
    warm = [Warmth(), Warmth(), Warmth(49_500, 20)]
    alone = view(3, warm, turn_steps=3, remaining_steps=30)
    returning = msgspec.structs.replace(alone, next_wanted=(0.0, 0.0, 1.0))

    moved, kept = (choose_at_boundary(one, TIERS, [1, 1, 1], 0.5) for one in (alone, returning))

    # With 30 steps ahead the cheap tier is worth its cold start; if the dear one is wanted next, much less of that.
    assert moved.tier == 1
    assert (moved.rest_usd[2] - moved.rest_usd[0]) > (kept.rest_usd[2] - kept.rest_usd[0])


@pytest.mark.parametrize(("current", "expected"), [(1, 2), (2, 3), (3, 3)])
def test_after_a_bad_end_the_next_turn_runs_one_tier_up(current: int, expected: int) -> None:
    choice = choose_at_boundary(view(current, end="bad"), TIERS, [1, 1, 1], 0.5)

    assert choice.tier == expected


def test_a_prompt_that_overflows_is_no_candidate_and_moves_a_loop() -> None:
    small = (tier(1, 1.0, context_tokens=40_000), *TIERS[1:])

    assert choose_at_boundary(view(1), small, [1, 1, 1], 0.5).tier == 2
    moved = must_move(view(1), small, LoopCounters(steps=9))
    assert moved is not None
    assert moved.tier == 2
    assert "fit" in moved.reason


def test_a_loop_stays_until_its_tier_fails_or_forms_no_readable_calls() -> None:
    assert must_move(view(2), TIERS, LoopCounters(steps=50, errors=50, repeats=50)) is None
    assert must_move(view(2), TIERS, LoopCounters(bad_calls=MOST_BAD_CALLS - 1)) is None
    for counters, excluded in (
        (LoopCounters(bad_calls=MOST_BAD_CALLS), frozenset[int]()),
        (LoopCounters(failures=MOST_FAILURES), frozenset[int]()),
        (LoopCounters(), frozenset({2})),
    ):
        moved = must_move(view(2), TIERS, counters, excluded)
        assert moved is not None
        assert moved.tier == 3
    # Above the strongest there is nothing; a failing strongest tier leaves the next one down.
    assert must_move(view(3), TIERS, LoopCounters(bad_calls=MOST_BAD_CALLS)) is None
    down = must_move(view(3), TIERS, LoopCounters(failures=MOST_FAILURES))
    assert down is not None
    assert down.tier == 2
