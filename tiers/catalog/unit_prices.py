"""What endpoints that are passed through cost: by the unit of each, as the catalogue or the price list says, or by the
tokens that an answer reports."""

import math
from datetime import UTC, datetime
from typing import Any

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


class UnitPrice(msgspec.Struct, frozen=True, kw_only=True):
    """`usd_per_unit`: None where neither catalogue nor list has it; then `rates`, US dollars per million tokens by
    kind, if the list has these. `listed`: the list that it comes from; "" for the catalogue."""

    unit: str
    usd_per_unit: float | None = None
    rates: dict[str, float] = {}
    listed: str = ""

    @property
    def is_priced(self) -> bool:
        """Whether anything is known of it."""
        return self.usd_per_unit is not None or bool(self.rates)

    def usd(self, units: float, usage: dict[str, Any] | None) -> float | None:
        """Return US dollars of so many units, or of the tokens of `usage`; None where neither has a price."""
        if self.usd_per_unit is not None:
            return units * self.usd_per_unit
        counted = _tokens(usage or {})
        if not self.rates or not counted:
            return None
        return sum(tokens * self.rates.get(kind, self.rates["output" if kind == "output" else "input"])
                   for kind, tokens in counted.items()) / 1e6  # fmt: skip

    def said(self, units: float, usd: float | None) -> str:
        """Return the units and their price in words, for the record."""
        price = "unpriced" if usd is None else f"${usd:.6f}"
        return f"{units:g} {self.unit}, {price}" + (f" ({self.listed})" if self.listed and usd is not None else "")


def unit_price(spec: TierSpec, endpoint: ServedEndpoint) -> UnitPrice:
    """Return the price of `endpoint` at the server of `spec`."""
    per, unit = PER[endpoint]
    if (given := spec.unit_prices.get(endpoint)) is not None:
        return UnitPrice(unit=unit, usd_per_unit=given / per)
    from tiers.catalog.price_list import list_version, listed_info

    assert spec.remote is not None
    found = listed_info(spec.model_name, provider=spec.provider, base_url=spec.remote.base_url)
    if found is None:
        return UnitPrice(unit=unit)
    listed, name = found.get_prices(datetime.now(UTC)), f"genai-prices {list_version()}"
    for field in _LISTED.get(endpoint, ()):
        if (price := getattr(listed, field, None)) is not None:
            return UnitPrice(unit=unit, usd_per_unit=float(price) / per, listed=name)
    rates = {
        kind: float(getattr(price, "base", price))
        for kind, fields in _RATES.items()
        if (price := next((one for f in fields if (one := getattr(listed, f, None)) is not None), None)) is not None
    }
    return UnitPrice(unit=unit, rates=rates if {"input", "output"} <= rates.keys() else {}, listed=name)


_RATES = {
    "input": ("input_mtok",),
    "input_image": ("input_image_mtok", "input_mtok"),
    "input_audio": ("input_audio_mtok", "input_mtok"),
    "output": ("output_image_mtok", "output_mtok"),
}


def _tokens(usage: dict[str, Any]) -> dict[str, float]:
    """Return the tokens by kind of OpenAI's `usage` of images and transcriptions; none where it has no such counts."""
    details = usage.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    image, audio = (_count(details.get(f"{kind}_tokens")) for kind in ("image", "audio"))
    total, output = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    if not total and not output:
        return {}
    return {"input": max(0.0, total - image - audio), "input_image": image, "input_audio": audio, "output": output}


def _count(value: object) -> float:
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_count else 0.0  # type: ignore[arg-type]
