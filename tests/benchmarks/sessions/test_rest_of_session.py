"""The policy that knows a family's averages: the cheapest rest at a boundary, and no move without a gain."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sessions.rest_of_session import SessionView, kept_share, least_rest, rest_usd
from classifier.policy.sessions import SessionTier, Warmth

ALL = [True] * 3


def tier(usd: float) -> SessionTier:
    return SessionTier(
        input_usd=usd, output_usd=5 * usd, read_usd=usd / 10, write_usd=usd * 1.25, cache_seconds=300,
        min_cached_tokens=1024,
    )  # fmt: skip


TIERS = (tier(1.0), tier(3.0), tier(5.0))
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
    equal = [tier(usd)] * 3
    current = seen.current or 1
    own = seen.warmth[current - 1]
    others = [Warmth(min(one.tokens, own.tokens), max(one.age_seconds, own.age_seconds)) for one in seen.warmth]
    others[current - 1] = own

    chosen = least_rest(msgspec.structs.replace(seen, warmth=tuple(others)), equal, ALL)

    assert chosen + 1 == current


@given(views, st.lists(st.booleans(), min_size=3, max_size=3).filter(any))
def test_the_choice_is_the_cheapest_of_the_tiers_that_are_good_enough(seen: SessionView, adequate: list[bool]) -> None:
    chosen = least_rest(seen, TIERS, adequate)

    rest = rest_usd(seen, TIERS, adequate)
    assert rest[chosen] == min(usd for usd, good in zip(rest, adequate, strict=True) if good)


@given(views, st.integers(0, 2), st.integers(0, 50_000))
def test_more_cached_tokens_never_make_a_tiers_rest_dearer(seen: SessionView, k: int, more: int) -> None:
    warmer = list(seen.warmth)
    warmer[k] = Warmth(warmer[k].tokens + more, warmer[k].age_seconds)

    before = rest_usd(seen, TIERS, ALL)
    after = rest_usd(msgspec.structs.replace(seen, warmth=tuple(warmer)), TIERS, ALL)

    assert all(one <= other * (1 + 1e-9) for one, other in zip(after, before, strict=True))


def test_a_short_turn_stays_on_a_warm_dearer_tier_and_a_long_one_moves_to_the_cheap_cold_one() -> None:
    warm = [Warmth(), Warmth(49_000, 20), Warmth()]
    short, long = view(2, warm, turn_steps=1, remaining_steps=1), view(2, warm, turn_steps=40, remaining_steps=40)

    assert least_rest(short, TIERS, ALL) == 1
    assert least_rest(long, TIERS, ALL) == 0


def test_a_cache_outlasts_a_pause_of_its_own_length_half_the_time() -> None:
    assert kept_share(TIERS[0], 0, 300) == pytest.approx(0.5)
    assert kept_share(TIERS[0], 0, 10) > 0.95
    assert kept_share(TIERS[0], 300, 10) == 0


def test_a_likely_switch_back_keeps_a_session_where_it_is() -> None:
    warm = [Warmth(), Warmth(), Warmth(49_500, 20)]
    alone = view(3, warm, turn_steps=3, remaining_steps=30)
    returning = msgspec.structs.replace(alone, next_wanted=(0.0, 0.0, 1.0))

    moved, kept = (rest_usd(one, TIERS, ALL) for one in (alone, returning))

    # With 30 steps ahead the cheap tier is worth its cold start; if the dear one is wanted next, much less of that.
    assert least_rest(alone, TIERS, ALL) == 0
    assert (moved[2] - moved[0]) > (kept[2] - kept[0])
