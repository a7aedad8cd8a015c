"""A model that may become a tier: where it is, and what is known of it."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tiers.catalog.capabilities import Capabilities
from tiers.catalog.gpu_group import GpuGroupSpec
from tiers.catalog.price_estimate import named_billions, price_of_size
from tiers.catalog.pricing import request_cost_usd
from tiers.catalog.tier_spec import Price, RemoteKind

PROMPT_TOKENS, ANSWER_TOKENS = 200, 200
"""Of the request by which candidates are ordered; as a catalogue's defaults."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `url`, `provider`, `path`, `group` and `remote` is set; `group` holds the model of this name,
    `remote` is the entry's whole table of that name. `further`: other fields of the entry.

    `source`: where it was found, in words; candidates of one source are one server's or one key's. `model`: its name
    there; "" is a server's only model, still unknown. `price`: the price list's, or that of `price_from`; None if the
    list does not know it.
    `context_note`: why `max_context` is what it is, where a reader may want to change it. `is_default`: whether it may
    be proposed without being asked for.
    """

    source: str
    model: str
    url: str = ""
    provider: str = ""
    path: str = ""
    group: GpuGroupSpec | None = None
    name: str = ""
    kind: RemoteKind = "openai"
    api_key_env: str | None = None
    max_context: int | None = None
    context_note: str = ""
    capabilities: Capabilities = Capabilities()
    billions: float | None = None
    price: Price | None = None
    price_from: str = ""
    is_default: bool = True
    remote: dict[str, Any] = {}
    further: dict[str, Any] = {}

    @property
    def estimate(self) -> Price | None:
        """The price, or an estimate by the model's size; None if neither is known."""
        billions = self.billions or named_billions(self.model)
        return self.price or (None if billions is None else price_of_size(billions))

    @property
    def cost_usd(self) -> float:
        """US dollars of an ordinary request; 0 if unknown, as of a server of one's own without a size in its name."""
        price = self.estimate
        return 0.0 if price is None else request_cost_usd(price, PROMPT_TOKENS * 1000, ANSWER_TOKENS * 1000) / 1000


def by_cost(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates, cheapest first; equal ones keep their order."""
    return sorted(candidates, key=lambda candidate: candidate.cost_usd)


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates as tiers, cheapest first: models on servers of one's own, which cost the same used or idle,
    before those that are paid by the token.

    Their prices are estimates, which are lowered to the cheapest paid model's, so that costs rise with the tiers.
    """
    ordered = by_cost(candidates)
    paid = [one for one in ordered if one.price is not None]
    own = [one for one in ordered if one.price is None]
    return [_at_most(one, paid[0].price) for one in own] + paid if paid else own


def _at_most(own: Candidate, ceiling: Price | None) -> Candidate:
    price = own.estimate
    if (
        price is None
        or ceiling is None
        or request_cost_usd(price, PROMPT_TOKENS, ANSWER_TOKENS)
        <= request_cost_usd(ceiling, PROMPT_TOKENS, ANSWER_TOKENS)
    ):
        return own
    lowered = Price(
        input_usd_per_million=ceiling.input_usd_per_million,
        output_usd_per_million=ceiling.output_usd_per_million,
        estimated="order",
    )
    return msgspec.structs.replace(own, price=lowered)


def proposed(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """Return at most `most` candidates that make sensible tiers: of every source its cheapest and its strongest."""
    chosen: list[Candidate] = []
    for source in dict.fromkeys(candidate.source for candidate in candidates):
        ordered = by_cost(one for one in candidates if one.source == source and one.is_default)
        chosen += ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
    return in_order(chosen[:most])


def with_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, each with a name of its own: its model's, unless it has one."""
    named: list[Candidate] = []
    taken = {candidate.name for candidate in candidates if candidate.name}
    for candidate in candidates:
        name = candidate.name
        if not name:
            wanted = name = tier_name(candidate.model or "tier")
            number = 2
            while name in taken:
                name, number = f"{wanted}-{number}", number + 1
            taken.add(name)
        named.append(msgspec.structs.replace(candidate, name=name))
    return named


def tier_name(model: str) -> str:
    """Return a tier's name for a model: the last part of its name, of letters, digits, dots and dashes."""
    last = model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "tier"
