"""What a turn costs on a tier: tokens read from its cache, written to it, and answered."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.policy.sessions import SessionTier, Warmth, turn_usd, warm_tokens

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
