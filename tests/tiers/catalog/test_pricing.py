"""Prices: exact billing, predictions that rise with the tier, the blended cost of the sources."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog, shipped_catalogs
from tiers.catalog.pricing import (
    blended_cost,
    cost_usd,
    highest_input_usd,
    long_price,
    most_cost_usd,
    predicted_costs,
    request_cost_usd,
    reread_usd,
    reuse_usd,
    write_pays,
)
from tiers.catalog.tier_spec import Price, PriceStep, RemoteSpec
from tiers.tier import Usage

REQUEST_COSTS = [0.0001, 0.0005, 0.003, 0.01]
MIX = [0.60, 0.20, 0.15, 0.05]
# Claude Sonnet's.
SONNET = Price(
    input_usd_per_million=3.0,
    output_usd_per_million=15.0,
    cached_input_usd_per_million=0.3,
    cache_write_usd_per_million=3.75,
)


def test_the_blended_cost_of_the_sources_is_reproduced() -> None:
    blended = blended_cost(REQUEST_COSTS, MIX, baseline_cost=0.003)
    assert blended.per_request == pytest.approx(0.00111)
    assert round(blended.saving, 2) == 0.63
    assert blended.per_request_with_checks == pytest.approx(0.00151)
    assert round(blended.saving_with_checks, 2) == 0.50


@pytest.mark.parametrize("mix", [[1.0], [0.5, 0.2, 0.2, 0.2], [1.5, -0.5, 0.0, 0.0]])
def test_a_mix_that_is_no_distribution_over_the_tiers_is_refused(mix: list[float]) -> None:
    with pytest.raises(ValueError, match="4 shares"):
        blended_cost(REQUEST_COSTS, mix, baseline_cost=0.003)


def test_a_mix_may_leave_tiers_out_and_is_held_against_a_cost_above_nothing() -> None:
    assert blended_cost(REQUEST_COSTS, [0.0, 1.0, 0.0, 0.0], baseline_cost=0.001).saving == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"baseline_cost = 0\.0"):
        blended_cost(REQUEST_COSTS, MIX, baseline_cost=0.0)


@pytest.mark.parametrize("name", ["laptop", "datacenter"])
def test_the_shipped_prices_cost_what_the_sources_say_per_reference_request(name: str) -> None:
    costs = predicted_costs(load_catalog(name), prompt_tokens=200, max_tokens=None)
    assert costs == pytest.approx([0.0001, 0.0005, 0.003, 0.01], abs=5e-6)


def test_a_bill_is_tokens_times_price_with_its_fraction_of_a_micro_dollar() -> None:
    tier = load_catalog("laptop").tier(3)
    usage = Usage(prompt_tokens=123, completion_tokens=45)
    # 123 x 3.75 + 45 x 11.25 = 967.5 micro-dollars
    assert cost_usd(tier, usage) == 0.0009675


def test_cached_tokens_and_cache_writes_are_billed_at_their_own_prices() -> None:
    # 40 written at 3.75, 100 read at 0.30, the other 10 at 3, 42 answered at 15.
    tier = msgspec.structs.replace(load_catalog("laptop").tier(3), price=SONNET)
    usage = Usage(prompt_tokens=150, completion_tokens=42, cached_tokens=100, cache_write_tokens=40)
    assert cost_usd(tier, usage) == pytest.approx((10 * 3 + 100 * 0.3 + 40 * 3.75 + 42 * 15) / 1e6)


def test_without_prices_of_their_own_cached_tokens_cost_as_much_as_others() -> None:
    tier = load_catalog("laptop").tier(3)
    plain, cached = Usage(prompt_tokens=1000), Usage(prompt_tokens=1000, cached_tokens=600, cache_write_tokens=300)
    assert cost_usd(tier, cached) == cost_usd(tier, plain) > 0


def test_tokens_written_for_an_hour_cost_twice_the_prompts_price_unless_the_catalogue_says() -> None:
    price = Price(input_usd_per_million=3, output_usd_per_million=15, cache_write_usd_per_million=3.75)
    own = msgspec.structs.replace(price, cache_write_1h_usd_per_million=5)
    without = msgspec.structs.replace(price, cache_write_usd_per_million=None)
    costs = [request_cost_usd(variant, 100, 0, 10, 60, 40) for variant in (price, own, without)]
    assert costs == pytest.approx([(40 * 3 + 20 * 3.75 + 40 * usd) / 1e6 for usd in (6, 5)] + [300 / 1e6])


def test_a_write_pays_where_what_a_read_saves_is_likely_enough() -> None:
    # 0.75 more for a write, 2.70 less for a read.
    assert [write_pays(SONNET, reuse) for reuse in (0.27, 0.28)] == [False, True]
    assert not write_pays(msgspec.structs.replace(SONNET, cached_input_usd_per_million=None), 1.0)


def test_no_more_tokens_are_cached_than_the_prompt_has() -> None:
    price = Price(input_usd_per_million=1.0, output_usd_per_million=1.0, cached_input_usd_per_million=0.0)
    assert request_cost_usd(price, 10, 0, cached_tokens=99, cache_write_tokens=99) == 0


def test_what_a_cached_beginning_saves_is_the_difference_of_the_prices() -> None:
    local = load_catalog("laptop").tier(3)
    claude = msgspec.structs.replace(
        local, model=None, remote=RemoteSpec(base_url="https://x/v1", model="c"), price=SONNET
    )
    plain = msgspec.structs.replace(claude, price=Price(input_usd_per_million=3.0, output_usd_per_million=15.0))
    guessed = msgspec.structs.replace(
        plain, price=Price(input_usd_per_million=3.0, output_usd_per_million=15.0, estimated="size")
    )
    assert reuse_usd(claude, 1000) == pytest.approx(2.7e-3)
    assert reread_usd(claude, 1000) == pytest.approx(0.75e-3)
    assert reuse_usd(plain, 1000) == 0, "billed in full elsewhere"
    assert reuse_usd(guessed, 1000) == pytest.approx(3e-3), "an estimate stands for computing"
    assert reuse_usd(local, 1000) == pytest.approx(local.price.input_usd_per_million * 1e-3), "computed here"


def test_prices_that_binary_fractions_cannot_hold_are_billed_exactly() -> None:
    price = Price(input_usd_per_million=0.1, output_usd_per_million=0.0)
    # 3 x 0.1 = 0.3 micro-dollars; the binary product is 0.30000000000000004
    assert request_cost_usd(price, 3, 0) == 3e-7


def test_a_small_max_tokens_bounds_the_prediction() -> None:
    catalog = load_catalog("laptop")
    short, long = predicted_costs(catalog, 200, 16), predicted_costs(catalog, 200, None)
    assert short[0] == pytest.approx((200 * 0.125 + 16 * 0.375) / 1e6)
    assert all(s < w for s, w in zip(short, long, strict=True))


def test_a_predicted_length_takes_the_place_of_the_usual_one_where_there_is_one() -> None:
    catalog = load_catalog("laptop")
    usual, predicted = (
        predicted_costs(catalog, 200, None),
        predicted_costs(catalog, 200, None, [10.0, None, None, 40.0]),
    )
    assert predicted[0] == pytest.approx((200 * 0.125 + 10 * 0.375) / 1e6)
    assert predicted[1:3] == usual[1:3]
    # A dearer tier costs no less whatever is predicted.
    assert predicted[2] == predicted[3] < usual[3]
    assert predicted_costs(catalog, 200, 4, [10.0])[0] == pytest.approx((200 * 0.125 + 4 * 0.375) / 1e6)


def test_a_majority_tier_is_predicted_to_bill_all_its_samples() -> None:
    assert predicted_costs(load_catalog("laptop"), 0, 16)[2] == pytest.approx(5 * 16 * 11.25 / 1e6)


CATALOGS = [load_catalog(name) for name in shipped_catalogs()]


@settings(deadline=None)
@given(catalog=st.sampled_from(CATALOGS), prompt=st.integers(0, 10**6), limit=st.none() | st.integers(1, 10**5))
def test_predicted_costs_never_fall_with_the_tier(catalog: Catalog, prompt: int, limit: int | None) -> None:
    costs = predicted_costs(catalog, prompt, limit)
    assert costs[0] > 0
    assert all(a <= b for a, b in pairwise(costs))


CACHING = Price(
    input_usd_per_million=4.0,
    output_usd_per_million=8.0,
    cached_input_usd_per_million=1.0,
    cache_write_usd_per_million=5.0,
    cache_write_1h_usd_per_million=8.0,
)


@pytest.mark.parametrize(
    ("tokens", "micro"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 0}, 40),
        # Each kind alone, and writes for an hour with the others.
        ({"prompt_tokens": 10, "completion_tokens": 0, "cached_tokens": 6}, 4 * 4 + 6 * 1),
        ({"prompt_tokens": 10, "completion_tokens": 0, "cache_write_tokens": 6}, 4 * 4 + 6 * 5),
        ({"prompt_tokens": 10, "completion_tokens": 0, "cache_write_tokens": 6, "cache_write_1h_tokens": 2},
         4 * 4 + 4 * 5 + 2 * 8),
        # A server's counts that cannot be are cut to the prompt: reads first, then writes, of which an hour's.
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 12}, 10 * 1 + 8),
        ({"prompt_tokens": 10, "completion_tokens": 0, "cached_tokens": 8, "cache_write_tokens": 5}, 8 * 1 + 2 * 5),
        ({"prompt_tokens": 10, "completion_tokens": 0, "cache_write_tokens": 3, "cache_write_1h_tokens": 9},
         7 * 4 + 3 * 8),
    ],
)  # fmt: skip
def test_each_kind_of_prompt_tokens_has_its_price_and_no_token_is_billed_twice(
    tokens: dict[str, int], micro: float
) -> None:
    assert request_cost_usd(CACHING, **tokens) == pytest.approx(micro / 1e6, rel=1e-12)


@pytest.mark.parametrize(
    "dearest",
    ["input_usd_per_million", "cached_input_usd_per_million", "cache_write_usd_per_million",
     "cache_write_1h_usd_per_million"],
)  # fmt: skip
def test_the_highest_price_of_prompt_tokens_is_that_of_the_dearest_kind(dearest: str) -> None:
    low = dict.fromkeys(Price.__struct_fields__, 0.25)
    fields = {name: low[name] for name in (
        "input_usd_per_million", "output_usd_per_million", "cached_input_usd_per_million",
        "cache_write_usd_per_million", "cache_write_1h_usd_per_million",
    )}  # fmt: skip
    assert highest_input_usd(Price(**(fields | {dearest: 0.5}))) == 0.5
    alone = Price(input_usd_per_million=0.25, output_usd_per_million=9.0)
    assert highest_input_usd(alone) == 0.25


def test_a_write_that_costs_just_what_a_read_saves_does_not_pay() -> None:
    # A read saves 2, a write costs 1 more: they are equal at one half.
    price = Price(
        input_usd_per_million=2.0, output_usd_per_million=0.0, cached_input_usd_per_million=0.0,
        cache_write_usd_per_million=3.0,
    )  # fmt: skip
    assert not write_pays(price, 0.5)
    assert write_pays(price, 0.5000001)


def test_what_a_cached_prefix_saves_and_a_new_one_costs_is_exact_and_never_negative() -> None:
    tier = msgspec.structs.replace(load_catalog("laptop").tier(1), price=CACHING)
    assert reuse_usd(tier, 1_000_000) == 3.0
    assert reread_usd(tier, 1_000_000) == 1.0
    cheap = msgspec.structs.replace(CACHING, cache_write_usd_per_million=2.0)
    assert reread_usd(msgspec.structs.replace(tier, price=cheap), 1_000_000) == 0.0
    plain = msgspec.structs.replace(CACHING, cache_write_usd_per_million=None)
    assert reread_usd(msgspec.structs.replace(tier, price=plain), 1_000_000) == 0.0


# Dearer from 1,001 tokens on, and less dear from 5,001.
STEPPED = Price(
    input_usd_per_million=3.0,
    output_usd_per_million=15.0,
    steps=[
        PriceStep(above_prompt_tokens=1000, input_usd_per_million=6.0, output_usd_per_million=30.0),
        PriceStep(above_prompt_tokens=5000, input_usd_per_million=4.0, output_usd_per_million=10.0),
    ],
)


@pytest.mark.parametrize(
    ("prompt", "rates"), [(0, (3, 15)), (1000, (3, 15)), (1001, (6, 30)), (5000, (6, 30)), (5001, (4, 10))]
)
def test_all_tokens_of_a_long_prompt_have_the_price_of_its_step(prompt: int, rates: tuple[float, float]) -> None:
    catalog = load_catalog("laptop")
    tier = catalog.tiers[3] = msgspec.structs.replace(catalog.tier(4), price=STEPPED)
    for other in (0, 1, 2):
        free = Price(input_usd_per_million=0.0, output_usd_per_million=0.0)
        catalog.tiers[other] = msgspec.structs.replace(catalog.tiers[other], price=free)
    usd = (prompt * rates[0] + 100 * rates[1]) / 1e6
    assert cost_usd(tier, Usage(prompt_tokens=prompt, completion_tokens=100)) == usd
    assert cost_usd(tier, Usage(prompt_tokens=10**6), CACHING) == 4.0, "a price that is known already"
    assert predicted_costs(catalog, prompt, None, [None, None, None, 100.0])[3] == usd


@pytest.mark.parametrize(("prompt", "usd"), [(1000, 3e-3 + 15e-3), (1001, 6.006e-3 + 30e-3), (5001, 30.006e-3 + 30e-3)])
def test_the_most_that_an_attempt_costs_is_at_the_dearest_of_the_steps_that_its_prompt_may_reach(
    prompt: int, usd: float
) -> None:
    assert most_cost_usd(STEPPED, prompt, 1000) == pytest.approx(usd)
    assert most_cost_usd(CACHING, 1000, 1000) == pytest.approx(8e-3 + 8e-3)


@pytest.mark.parametrize(
    ("kind", "prompts", "choices", "input_usd"),
    [("openai", 1, 2, 6), ("openai", 2, 1, 3), ("anthropic", 1, 2, 3), ("anthropic", 1, 1, 6), (None, 1, 2, 6),
     ("openai", 0, 1, 6)],
)  # fmt: skip
def test_a_prompts_step_is_that_of_one_call_of_its_server(
    kind: str | None, prompts: int, choices: int, input_usd: float
) -> None:
    server = {} if kind is None else {"kind": kind, "base_url": "https://x/v1", "model": "c"}
    remote = msgspec.convert(server, RemoteSpec) if server else None
    tier = msgspec.structs.replace(load_catalog("laptop").tier(3), price=STEPPED, model=None, remote=remote)
    assert long_price(tier, Usage(prompt_tokens=2000), prompts, choices).input_usd_per_million == input_usd
