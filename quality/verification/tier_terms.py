"""What a verification has to know of the tiers: prices, samples, abilities and versions, as the catalogue says now."""

from collections.abc import Sequence
from typing import Protocol

from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.pricing import cost_usd
from tiers.catalog.tier_spec import Capability
from tiers.tier import Usage


class TierTerms(Protocol):
    """Tiers are named by number. Answers may change while a gateway serves, so nothing keeps them."""

    @property
    def fingerprints(self) -> Sequence[str]:
        """The fingerprints of all tiers, ascending; stored with the labels."""

    def price_usd(self, tier: int, usage: Usage) -> float:
        """Return what the tier bills for some usage."""

    def samples(self, tier: int) -> int:
        """Return the number of sequences that an answer of the tier may be billed for."""

    def supports(self, tier: int, needs: frozenset[Capability]) -> bool:
        """Whether the tier has all that a turn needs."""


class CatalogTerms:
    """The terms of the catalogue in use."""

    def __init__(self, catalog: CatalogInUse) -> None:
        self._catalog = catalog

    @property
    def fingerprints(self) -> Sequence[str]:
        return self._catalog.current.tier_fingerprints

    def price_usd(self, tier: int, usage: Usage) -> float:
        return cost_usd(self._catalog.current.tier(tier), usage)

    def samples(self, tier: int) -> int:
        return self._catalog.current.tier(tier).samples_per_choice

    def supports(self, tier: int, needs: frozenset[Capability]) -> bool:
        return needs <= self._catalog.current.tier(tier).has
