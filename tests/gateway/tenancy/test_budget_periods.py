"""Calendar periods and whole micro-dollars of budgets, and the most tokens that are billed."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest

from gateway.tenancy.admission import MostTokens, max_cost_usd, most_tokens
from gateway.tenancy.budgets.lease_book import BudgetUsd, microusd, microusd_at_least, period_bounds, period_key
from tests.gateway.chats import chat
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import MediaKind, Text, Turn, media
from tiers.tier import Usage


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("period", "now", "key", "begin", "end"),
    [
        ("day", at(2024, 2, 28, 23, 59), "2024-02-28", at(2024, 2, 28), at(2024, 2, 29)),
        ("day", at(2024, 12, 31), "2024-12-31", at(2024, 12, 31), at(2025, 1, 1)),
        ("month", at(2024, 2, 29), "2024-02", at(2024, 2, 1), at(2024, 3, 1)),
        ("month", at(2023, 12, 31), "2023-12", at(2023, 12, 1), at(2024, 1, 1)),
        ("month", at(2024, 1, 31), "2024-01", at(2024, 1, 1), at(2024, 2, 1)),
        ("total", at(2024, 1, 31), "total", 0.0, math.inf),
    ],
)
def test_a_period_is_a_day_or_a_month_of_utc_or_all_time(
    period: str, now: float, key: str, begin: float, end: float
) -> None:
    assert period_key(period, now) == key
    assert period_bounds(key) == (begin, end)
    assert begin <= now < end


def test_dollars_are_micro_dollars_with_their_fraction_and_rounded_up_where_whole_ones_are_kept() -> None:
    assert microusd(0.1) == Decimal(100_000)
    assert microusd(1e-7) == Decimal("0.1")
    assert microusd(0.1 + 0.2) == Decimal("300000"), "the error of the binary fraction is dropped"
    assert [microusd_at_least(usd) for usd in (0.0, 1e-6, 1.0003e-6, 1.001e-6, 1.4e-6, 0.1 + 0.2)] == [
        0, 1, 1, 2, 2, 300_000
    ]  # fmt: skip
    for usd in (0.0, 1e9):
        assert msgspec.convert(usd, BudgetUsd) == usd
    for wrong in (-1e-6, 1e9 + 0.5):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, BudgetUsd)


def test_a_bill_has_no_more_tokens_than_were_held_and_its_parts_stay_within_it() -> None:
    most = MostTokens(prompt=100, answer=50, choice=25, usd=1.0)
    within = Usage(prompt_tokens=100, completion_tokens=50, cached_tokens=90)
    assert most.bound(within) is within
    beyond = Usage(
        prompt_tokens=101, completion_tokens=10, cached_tokens=70, cache_write_tokens=31, cache_write_1h_tokens=31,
        reasoning_tokens=9,
    )  # fmt: skip
    assert most.bound(beyond) == Usage(
        prompt_tokens=100, completion_tokens=10, cached_tokens=70, cache_write_tokens=30, cache_write_1h_tokens=30,
        reasoning_tokens=9,
    )  # fmt: skip
    long = Usage(prompt_tokens=10, completion_tokens=51, cached_tokens=70, cache_write_tokens=5, reasoning_tokens=51)
    assert most.bound(long) == Usage(
        prompt_tokens=10, completion_tokens=50, cached_tokens=10, cache_write_tokens=0, reasoning_tokens=50
    )


def test_an_attempt_may_be_billed_for_every_prompt_choice_and_sample() -> None:
    tier, (plain, _, voting, _) = ScriptedTier(1, max_context=256), load_catalog("laptop").tiers
    # 10 bytes, a turn and the template.
    assert most_tokens(chat(max_tokens=5), tier, plain)[:3] == (10 + 16 + 64, 5, 5)
    assert voting.samples_per_choice == 5
    assert most_tokens(chat(max_tokens=7, n=2, best_of=3), tier, voting)[:3] == (90, 3 * 5 * 7, 7)
    two = chat(messages=None, prompts=["one two three", "one"], max_tokens=7)
    longest = two.most_prompt_tokens()
    assert longest >= len("one two three")
    assert most_tokens(two, tier, voting)[:3] == (2 * longest, 2 * 5 * 7, 7)
    price = plain.price
    assert max_cost_usd(chat(max_tokens=5), tier, plain) == pytest.approx(
        (90 * price.input_usd_per_million + 5 * price.output_usd_per_million) / 1e6
    )


@pytest.mark.parametrize(
    ("model", "parts", "most"),
    [
        # OpenAI's page on images and vision; each image is the largest that there is.
        ("gpt-4o", [{"detail": "low"}] * 5, 5 * 85),
        ("gpt-4o", [{}], 85 + 8 * 170),
        ("gpt-4o-mini", [{"detail": "low"}] * 5, 5 * 2833),
        ("openai/gpt-4o-mini", [{"detail": "high"}], 2833 + 8 * 5667),
        ("gpt-5-nano", [{"detail": "low"}], 3779),
        ("claude-opus-5", [{"detail": "low"}], 4784),
        ("unknown-vl", [{"detail": "low"}, {}], 2 * 16_384),
    ],
)
def test_an_image_may_have_what_the_largest_has_in_its_family_of_models(
    model: str, parts: list[dict[str, str]], most: int
) -> None:
    images = tuple(media("image", {"url": "https://images.example/1"} | one) for one in parts)
    request = chat(messages=[Turn.of("user", [Text("Look"), *images])], max_tokens=5)
    spec = msgspec.structs.replace(
        load_catalog("laptop").tiers[0], model=None, remote=RemoteSpec(base_url="http://127.0.0.1:9/v1", model=model)
    )
    assert most_tokens(request, ScriptedTier(1), spec).prompt == request.most_prompt_tokens() + most


@pytest.mark.parametrize("kind", ["audio", "file", "video"])
def test_audio_a_video_or_a_file_may_fill_the_context(kind: MediaKind) -> None:
    part = media(kind, {"url": "https://a.example/1", "data": "AAAA", "file_data": "AAAA"})
    request = chat(messages=[Turn.of("user", [Text("Look"), *(part,)])], max_tokens=5)
    tier = ScriptedTier(1, max_context=100_000)
    assert most_tokens(request, tier, load_catalog("laptop").tiers[0]).prompt >= 100_000


def test_without_a_limit_an_answer_may_fill_the_context_after_the_shortest_prompt() -> None:
    tier = ScriptedTier(1, max_context=256)
    here = msgspec.structs.replace(load_catalog("laptop").tiers[0], default_max_tokens=None, max_tokens=0)
    elsewhere = msgspec.structs.replace(here, remote=RemoteSpec(base_url="http://127.0.0.1:9/v1"))
    two = chat(messages=None, prompts=["one two three", "one"])
    assert most_tokens(two, tier, here).choice == 256
    assert most_tokens(chat(max_tokens=300), tier, here).choice == 256
    assert most_tokens(two, tier, elsewhere).choice == 256 - 1
    assert most_tokens(chat(max_tokens=5), tier, elsewhere).choice == 5
