"""Costs of answers: billed cost of one request, predicted cost per tier, blended cost of a traffic mix.

Tiers without a price in the catalogue get an estimate, so that routing and budgets have a cost, by the first applicable
method:

1. **Size.** A model of P billion parameters costs $0.05 x P per million prompt tokens. The shipped catalogues' prices
come to $0.04 to $0.08 per billion.
2. **Seconds.** An answer that takes `mean_latency_ms` costs that share of a server for $1 per hour.
3. **Order.** Otherwise the price follows from the tier's position: interpolated geometrically between two known prices;
beyond them four times as much per tier; without any, starting from the price of a model of 3 billion.

An output token costs three prompt tokens. Estimates are marked in `Price.estimated`, and wherever a cost is shown.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, repeat

import msgspec

from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import NO_PRICE, ONE_CHOICE, Price, TierSpec
from tiers.tier import Usage

USD_PER_BILLION = 0.05
OUTPUT_FACTOR = 3.0
USD_PER_HOUR = 1.0
STEP_FACTOR = 4.0
FIRST_BILLIONS = 3.0


def estimated_prices(tiers: Sequence[TierSpec], billions: Sequence[float | None], prompt_tokens: int) -> list[Price]:
    """Return the price of every tier: its own, or an estimate.

    `billions`: of each tier's model, None if unknown; `prompt_tokens`: of the request behind a tier's seconds.
    """
    first = [_first(tier, size, prompt_tokens) for tier, size in zip(tiers, billions, strict=True)]
    positions = [position for position, price in enumerate(first) if price is not None]
    inputs = [price.input_usd_per_million for price in first if price is not None]
    return [
        _price(_by_position(position, positions, inputs), "order") if price is None else price
        for position, price in enumerate(first)
    ]


def price_of_size(billions: float) -> Price:
    """Return the estimated price of a model with so many billions of active parameters."""
    return _price(USD_PER_BILLION * billions, "size")


def _first(tier: TierSpec, billions: float | None, prompt_tokens: int) -> Price | None:
    """Return the tier's own price, or one by size or seconds."""
    if tier.price != NO_PRICE:
        return tier.price
    if billions is not None:
        return price_of_size(billions)
    if tier.mean_latency_ms:
        usd = tier.mean_latency_ms / 1e3 / 3600 * USD_PER_HOUR
        return _price(usd * 1e6 / (prompt_tokens + OUTPUT_FACTOR * tier.expected_answer_tokens), "seconds")
    return None


def _by_position(position: int, positions: Sequence[int], inputs: Sequence[float]) -> float:
    if not positions:
        return USD_PER_BILLION * FIRST_BILLIONS * STEP_FACTOR**position
    if position < positions[0]:
        return float(inputs[0] * STEP_FACTOR ** (position - positions[0]))
    if position > positions[-1]:
        return float(inputs[-1] * STEP_FACTOR ** (position - positions[-1]))
    after = bisect_left(positions, position)
    below, above = (max(price, 1e-9) for price in inputs[after - 1 : after + 1])
    share = (position - positions[after - 1]) / (positions[after] - positions[after - 1])
    return float(below ** (1 - share) * above**share)


def _price(input_usd: float, estimated: str) -> Price:
    # Four digits: an estimate is no more precise, and sums stay readable.
    rounded = float(f"{input_usd:.4g}")
    output = float(f"{rounded * OUTPUT_FACTOR:.4g}")
    return Price(input_usd_per_million=rounded, output_usd_per_million=output, estimated=estimated)  # type: ignore[arg-type]


_UNITS_OF_A_MILLION = 10**36
LEAST_COST_USD = 1e-9
"""A thousandth of a micro-dollar: the least predicted cost of an answer, so that costs have shares of each other."""


def long_price(tier: TierSpec, usage: Usage, prompts: int, choices: int) -> Price:
    """Return the price of `usage` where a tier's price has steps. Each call of the server has its own length: the
    tokens are those of `prompts`, and of some kinds of servers for each of `choices`."""
    return tier.price.of_prompt(usage.prompt_tokens / max(1, calls_of(tier, prompts, choices)))


def calls_of(tier: TierSpec, prompts: int, choices: int) -> int:
    """Return how many calls of the tier's server answer `prompts` with `choices` each."""
    return prompts * (choices if tier.remote is not None and tier.remote.kind in ONE_CHOICE else 1)


def scaled(price: Price, factor: float) -> Price:
    """Return the price of tokens times `factor`, without its steps."""
    names = [name for name in Price.__struct_fields__ if name.endswith("_usd_per_million")]
    rates = {name: value * factor for name in names if (value := getattr(price, name)) is not None}
    return msgspec.structs.replace(price, **rates, steps=[])


def cost_usd(tier: TierSpec, usage: Usage, price: Price | None = None) -> float:
    """Return the US dollars billed for `usage` (SPEC RT-08): exact, since a micro-dollar may be many small answers.
    `price`: where it is known already; else the tier's for one call of its server."""
    if price is None:
        price = tier.price
        if price.steps:
            price = price.of_prompt(usage.prompt_tokens)
    return request_cost_usd(
        price,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
    )


def request_cost_usd(
    price: Price,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int = 0,
    cache_write_tokens: int = 0,
    cache_write_1h_tokens: int = 0,
) -> float:
    """The cost in whole numbers, to avoid rounding drift: dollars per million tokens x tokens are micro-dollars.

    `cached_tokens` and `cache_write_tokens` are parts of `prompt_tokens`, and `cache_write_1h_tokens` of the latter.
    Without prices of their own they cost as much as the others.
    """
    micro = (
        _exact(price.input_usd_per_million) * prompt_tokens + _exact(price.output_usd_per_million) * completion_tokens
    )
    if cached_tokens or cache_write_tokens:
        cached = min(cached_tokens, prompt_tokens)
        written = min(cache_write_tokens, prompt_tokens - cached)
        for_an_hour = min(cache_write_1h_tokens, written)
        for tokens, usd in (
            (cached, price.cached_input_usd_per_million),
            (written - for_an_hour, price.cache_write_usd_per_million),
            (for_an_hour, price.hour_write_usd_per_million),
        ):
            if tokens and usd is not None:
                micro += (_exact(usd) - _exact(price.input_usd_per_million)) * tokens
    return micro / _UNITS_OF_A_MILLION


def most_cost_usd(price: Price, prompt_tokens: int, answer_tokens: int) -> float:
    """Return the most US dollars that an attempt with at most so many tokens costs."""
    most = _most_cost_usd(price, prompt_tokens, answer_tokens)
    for step in price.steps:
        if prompt_tokens > step.above_prompt_tokens:
            most = max(
                most, _most_cost_usd(price.of_prompt(step.above_prompt_tokens + 1), prompt_tokens, answer_tokens)
            )
    return most


def _most_cost_usd(price: Price, prompt_tokens: int, answer_tokens: int) -> float:
    return (highest_input_usd(price) * prompt_tokens + price.output_usd_per_million * answer_tokens) / 1e6


def highest_input_usd(price: Price) -> float:
    """Return the US dollars per million prompt tokens of the dearest kind: cache writes may cost more than others."""
    return max(
        price.input_usd_per_million,
        price.cached_input_usd_per_million or 0.0,
        price.cache_write_usd_per_million or 0.0,
        price.hour_write_usd_per_million or 0.0,
    )


def write_pays(price: Price, reuse: float) -> bool:
    """Whether it pays to have a provider write a prompt into its cache that is read again with probability `reuse`:
    what a read saves is then more than what the write costs beyond the prompt's usual price."""
    if price.cached_input_usd_per_million is None:
        return False
    write = price.input_usd_per_million if (usd := price.cache_write_usd_per_million) is None else usd
    saved = price.input_usd_per_million - price.cached_input_usd_per_million
    return reuse * saved > write - price.input_usd_per_million


def reuse_usd(tier: TierSpec, tokens: int) -> float:
    """Return the US dollars that `tier` saves on a prompt whose first `tokens` tokens it has cached.

    Without a price of cached tokens, a given price of a server elsewhere bills them in full, so nothing is saved; an
    estimated price, and that of a model in process, stands for computing, which is saved.
    """
    price = tier.price
    cached = price.cached_input_usd_per_million
    if cached is None:
        cached = 0.0 if tier.remote is None or price.estimated else price.input_usd_per_million
    return max(0.0, price.input_usd_per_million - cached) * tokens / 1e6


def reread_usd(tier: TierSpec, tokens: int) -> float:
    """Return the US dollars beyond the prompt's usual price for `tokens` tokens of a conversation that `tier` reads
    for the first time: the provider writes them into its cache."""
    write = tier.price.cache_write_usd_per_million
    return 0.0 if write is None else max(0.0, write - tier.price.input_usd_per_million) * tokens / 1e6


@lru_cache(maxsize=1024)
def _exact(usd: float) -> int:
    """The price in units of 10⁻³⁰ dollars: exact for prices of a million-millionth of a dollar and more."""
    return int(Decimal(str(usd)).scaleb(30))


def predicted_costs(
    catalog: Catalog, prompt_tokens: int, max_tokens: int | None, answer_tokens: Sequence[float | None] = ()
) -> list[float]:
    """Return the predicted US dollars of answering with tier 1, 2, … before any generation; unrounded.

    Output is taken as `answer_tokens` where predicted (by tier; None where not), else as the tier's expected answer,
    and at most as what `max_tokens` lets it bill. The result never falls, whatever the prices: a tier costs at least as
    much as the one below (cumulative maximum), so that a higher quality target never lowers a tier (SPEC RT-05). Among
    tiers with equal cost, routing prefers the lower number.
    """
    costs, least = [], LEAST_COST_USD
    bound = math.inf if max_tokens is None else max_tokens
    for tier, predicted in zip(catalog.tiers, chain(answer_tokens, repeat(None)), strict=False):
        output: float = tier.expected_answer_tokens if predicted is None else predicted
        # A choice is one sequence at least.
        if output > bound:
            most = bound * tier.samples_per_choice
            output = most if most < output else output
        price = tier.price
        if price.steps:
            price = price.of_prompt(prompt_tokens)
        usd = (price.input_usd_per_million * prompt_tokens + price.output_usd_per_million * output) / 1e6
        if usd > least:
            least = usd
        costs.append(least)
    return costs


class BlendedCost(msgspec.Struct, frozen=True, kw_only=True):
    """Mean US dollars per request of a traffic mix; savings: shares of the baseline's cost, negative if dearer."""

    per_request: float
    saving: float
    per_request_with_checks: float
    saving_with_checks: float


def blended_cost(
    request_costs: Sequence[float],
    mix: Sequence[float],
    *,
    baseline_cost: float,
    check_rate: float = 0.05,
    checked_tiers: Sequence[int] = (1, 2),
) -> BlendedCost:
    """Blended cost of `mix` (share of requests per tier, summing to 1), and the saving against `baseline_cost`.

    A share `check_rate` of the requests of `checked_tiers` is verified by one answer of the last tier
    (SPEC RT-09: 60/20/15/5% at $0.0001/0.0005/0.003/0.01 against $0.003).
    Raises ValueError when lengths differ or the shares do not sum to 1.
    """
    if len(mix) != len(request_costs) or abs(sum(mix) - 1) > 1e-6 or min(mix) < 0:
        raise ValueError(f"mix {list(mix)}: expected {len(request_costs)} shares in [0, 1] that sum to 1")
    if baseline_cost <= 0:
        raise ValueError(f"baseline_cost = {baseline_cost}: must be positive")
    plain = sum(share * cost for share, cost in zip(mix, request_costs, strict=True))
    checked = plain + check_rate * sum(mix[k - 1] for k in checked_tiers) * request_costs[-1]
    return BlendedCost(
        per_request=plain,
        saving=1 - plain / baseline_cost,
        per_request_with_checks=checked,
        saving_with_checks=1 - checked / baseline_cost,
    )
