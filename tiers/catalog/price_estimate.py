"""Estimated prices for tiers without a price in the catalogue, so that routing and budgets have a cost.

The first applicable method is used:

1. **Size.** A model of P billion parameters costs $0.05 x P per million prompt tokens. The shipped catalogues' prices
   come to $0.04 to $0.08 per billion.
2. **Seconds.** An answer that takes `mean_latency_ms` costs that share of a server for $1 per hour.
3. **Order.** Otherwise the price follows from the tier's position: interpolated geometrically between two known prices;
   beyond them four times as much per tier; without any, starting from the price of a model of 3 billion.

An output token costs three prompt tokens. Estimates are marked in `Price.estimated`, and wherever a cost is shown.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from tiers.catalog.gpu_group import GpuModelSpec
from tiers.catalog.tier_spec import NO_PRICE, Price, TierSpec

USD_PER_BILLION = 0.05
OUTPUT_FACTOR = 3.0
USD_PER_HOUR = 1.0
STEP_FACTOR = 4.0
FIRST_BILLIONS = 3.0
_BITS = {"dense": 16.0, "int8": 8.0, "fp8": 8.0, "fp8-blocks": 8.0, "int4": 4.5}
# "30B" and "135M", "8x7B" (with two active experts), and "A3B" for the active part of the number before it.
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![A-Za-z0-9])a(\d+(?:\.\d+)?)b(?![A-Za-z0-9])", re.IGNORECASE)


def named_billions(name: str) -> float | None:
    """Return the billions of active parameters in a model's name or path; None without them."""
    if active := _ACTIVE.search(name):
        return float(active[1])
    if (size := _SIZE.search(name)) is None:
        return None
    billions = float(size[2]) * (2.0 if size[1] else 1.0)
    return billions / 1000 if size[3] in "mM" else billions


def planned_billions(model: GpuModelSpec) -> float:
    """Return the billions of parameters of a GPU group's model: by the name of its shape, its own, or the bytes of its
    weights."""
    named = named_billions(model.shape or "") or named_billions(model.name) or named_billions(model.path)
    return model.weight_bytes * 8 / _BITS[model.compute] / 1e9 if named is None else named


def estimated_prices(tiers: Sequence[TierSpec], billions: Sequence[float | None], prompt_tokens: int) -> list[Price]:
    """Return the price of every tier: its own, or an estimate.

    `billions`: of each tier's model, None if unknown; `prompt_tokens`: of the request behind a tier's seconds.
    """
    first = [_first(tier, size, prompt_tokens) for tier, size in zip(tiers, billions, strict=True)]
    places = [place for place, price in enumerate(first) if price is not None]
    inputs = [price.input_usd_per_million for price in first if price is not None]
    return [
        _price(_by_place(place, places, inputs), "order") if price is None else price
        for place, price in enumerate(first)
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


def _by_place(place: int, places: Sequence[int], inputs: Sequence[float]) -> float:
    if not places:
        return USD_PER_BILLION * FIRST_BILLIONS * STEP_FACTOR**place
    if place < places[0]:
        return float(inputs[0] * STEP_FACTOR ** (place - places[0]))
    if place > places[-1]:
        return float(inputs[-1] * STEP_FACTOR ** (place - places[-1]))
    after = bisect_left(places, place)
    below, above = (max(price, 1e-9) for price in inputs[after - 1 : after + 1])
    share = (place - places[after - 1]) / (places[after] - places[after - 1])
    return float(below ** (1 - share) * above**share)


def _price(input_usd: float, estimated: str) -> Price:
    # Four digits: an estimate is no more precise, and sums stay readable.
    rounded = float(f"{input_usd:.4g}")
    output = float(f"{rounded * OUTPUT_FACTOR:.4g}")
    return Price(input_usd_per_million=rounded, output_usd_per_million=output, estimated=estimated)  # type: ignore[arg-type]
