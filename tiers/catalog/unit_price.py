"""Costs of endpoints that are passed through: by the unit of each, as the catalogue or the price list says, or by
tokens, whose prices are the entry's own of the catalogue, or the list's."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec

from tiers.catalog.tier_spec import ServedEndpoint, TierSpec

PER: dict[ServedEndpoint, tuple[float, str]] = {
    "rerank": (1000.0, "searches"),
    "moderations": (1000.0, "inputs"),
    "images": (1.0, "images"),
    "speech": (1e6, "characters"),
    "transcriptions": (3600.0, "seconds"),
}
"""Units that a price is for, and their name: dollars per thousand searches, per image, per hour of audio."""
_LISTED = {"speech": ("input_mchars",), "transcriptions": ("audio_hours", "input_audio_hours")}
_RATES = {
    "input": ("input_mtok",),
    "input_image": ("input_image_mtok", "input_mtok"),
    "input_audio": ("input_audio_mtok", "input_mtok"),
    "output": ("output_image_mtok", "output_audio_mtok", "output_mtok"),
}
# These make no tokens, so that a list may have no price of them.
_INPUT_ALONE: tuple[ServedEndpoint, ...] = ("rerank", "moderations")
# Groq bills at least ten seconds of a request (https://groq.com/pricing, 2026-11).
_LEAST_SECONDS = {"groq": 10.0}
DEFAULT_IMAGE = "default"

Tokens = Mapping[str, float]
"""Tokens by kind: `input`, `input_image`, `input_audio` and `output`."""


class UnitPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of an endpoint that is billed by units."""

    unit: str
    usd_per_unit: float | None = None
    """None where neither catalogue nor list has it; then `rates` holds."""
    rates: dict[str, float] = {}
    """US dollars per million tokens by kind, if these are known."""
    least_units: float = 0.0
    """What is billed at least."""
    listed: str = ""
    """The list that it comes from; "" for the catalogue."""

    @property
    def is_known(self) -> bool:
        return self.usd_per_unit is not None or bool(self.rates)

    def usd(self, units: float, tokens: Tokens) -> float | None:
        """Return US dollars of so many units, or of tokens; None without a price."""
        if self.usd_per_unit is not None:
            return max(units, self.least_units) * self.usd_per_unit
        if not self.rates:
            return None
        return sum(count * self._rate(kind) for kind, count in tokens.items()) / 1e6

    def _rate(self, kind: str) -> float:
        if kind == "output":
            return self.rates.get("output", 0.0)
        return self.rates.get(kind, self.rates["input"])

    def said(self, units: float, usd: float | None) -> str:
        """Return the units and their price in words, for the record."""
        price = "unpriced" if usd is None else f"${usd:.6f}"
        return f"{units:g} {self.unit}, {price}" + (f" ({self.listed})" if self.listed and usd is not None else "")


def unit_price(spec: TierSpec, endpoint: ServedEndpoint, words: Collection[str] = ()) -> UnitPrice:
    """Return the price of `endpoint` at the server of `spec`. `words`: what a request for images says of their size and
    quality."""
    per, unit = PER[endpoint]
    least = _LEAST_SECONDS.get(spec.provider or "", 0.0) if endpoint == "transcriptions" else 0.0
    if (price := spec.unit_prices.get(endpoint)) is not None:
        usd = _image_usd(price, words) if isinstance(price, dict) else price
        return UnitPrice(unit=unit, usd_per_unit=usd / per, least_units=least)
    own = spec.price
    if not own.estimated and not own.listed:
        rates = {"input": own.input_usd_per_million, "output": own.output_usd_per_million}
        return UnitPrice(unit=unit, rates=rates)
    from tiers.catalog.price_list import list_version, listed_info

    assert spec.remote is not None
    info = listed_info(spec.model_name, provider=spec.provider, base_url=spec.remote.base_url)
    if info is None:
        return UnitPrice(unit=unit)
    listed, name = info.get_prices(datetime.now(UTC)), f"genai-prices {list_version()}"
    for field in _LISTED.get(endpoint, ()):
        if (price := getattr(listed, field, None)) is not None:
            return UnitPrice(unit=unit, usd_per_unit=float(price) / per, least_units=least, listed=name)
    rates = {
        kind: float(getattr(price, "base", price))
        for kind, fields in _RATES.items()
        if (price := next((rate for f in fields if (rate := getattr(listed, f, None)) is not None), None)) is not None
    }
    needed = {"input"} if endpoint in _INPUT_ALONE else {"input", "output"}
    return UnitPrice(unit=unit, rates=rates if needed <= rates.keys() else {}, listed=name)


def _image_usd(prices: Mapping[str, float], words: Collection[str]) -> float:
    """Return the price of an image of these sizes and qualities: of the row with the most of the words; the dearest
    row's where a word is in no row, as for `auto`."""
    rows = {row: frozenset(() if row == DEFAULT_IMAGE else row.split()) for row in prices}
    fitting = [row for row, names in rows.items() if names <= set(words)]
    if not fitting or not set(words) <= frozenset[str]().union(*rows.values()):
        return max(prices.values())
    most = max(len(rows[row]) for row in fitting)
    return max(prices[row] for row in fitting if len(rows[row]) == most)
