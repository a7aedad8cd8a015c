"""How often cheap answers agree, and how often an agreed one is worse: counts by tenant, key, system prompt and kind.

The estimate goes from all tenants to the caller's tenant, its key and its system prompt. Each level moves the one above
by its counts: (n0 parent + count) / (n0 + n). What other tenants know weighs little: none counts for more than a fifth
of n0, as in `classifier.local.tenant_cells`.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

# Pseudo-counts of the estimate above, and the most comparisons of one tenant that count for others.
N0 = 20.0
MOST_OF_A_TENANT = N0 / 5


class AgreementCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`agreed` of `compared` sets of answers did agree. `verified` of the agreed ones were compared with the strongest
    tier's answer, and `lost` of these were worse. Weights, so not always whole."""

    compared: float = 0.0
    agreed: float = 0.0
    verified: float = 0.0
    lost: float = 0.0

    def plus(self, other: "AgreementCounts") -> "AgreementCounts":
        """Return the sum of both."""
        return AgreementCounts(
            compared=self.compared + other.compared,
            agreed=self.agreed + other.agreed,
            verified=self.verified + other.verified,
            lost=self.lost + other.lost,
        )

    def at_most(self, most: float) -> "AgreementCounts":
        """Return the same rates with a weight of at most `most` comparisons and `most` verified ones."""
        compared = most / max(self.compared, most)
        verified = most / max(self.verified, most)
        return AgreementCounts(
            compared=self.compared * compared,
            agreed=self.agreed * compared,
            verified=self.verified * verified,
            lost=self.lost * verified,
        )


class AgreementPlace(NamedTuple):
    """Whose answers are compared: the tenant ("": the key is its own), the key, its system prompt, and the kind of
    answer."""

    tenant: str
    key: str
    prompt: str
    kind: str


class AgreementRates(NamedTuple):
    """`agreed`: P(the answers agree). `lost`: P(an agreed answer is worse than the strongest tier's)."""

    agreed: float
    lost: float


def estimated_rates(levels: Sequence[AgreementCounts], prior: AgreementRates) -> AgreementRates:
    """Return `prior` moved by the counts of each of `levels`, from the widest to the narrowest."""
    agreed, lost = prior
    for level in levels:
        agreed = (N0 * agreed + level.agreed) / (N0 + level.compared)
        lost = (N0 * lost + level.lost) / (N0 + level.verified)
    return AgreementRates(agreed, lost)


class AgreementTable:
    """The counts of every place and group of tiers. Not thread-safe: one owner writes and reads it. `is_verified`:
    whether any agreed answer was verified."""

    def __init__(self) -> None:
        self.is_verified = False
        self._prompts: dict[tuple[str, str, str, str, tuple[int, ...]], AgreementCounts] = defaultdict(AgreementCounts)
        self._keys: dict[tuple[str, str, str, tuple[int, ...]], AgreementCounts] = defaultdict(AgreementCounts)
        self._tenants: dict[tuple[str, tuple[int, ...]], dict[str, AgreementCounts]] = defaultdict(dict)

    def add(self, place: AgreementPlace, tiers: tuple[int, ...], counts: AgreementCounts) -> None:
        """Add `counts` of answers that `tiers` (ascending) gave at `place`."""
        tenant, key, prompt, kind = _owned(place)
        whole = (tenant, key, prompt, kind, tiers)
        self._prompts[whole] = self._prompts[whole].plus(counts)
        self._keys[tenant, key, kind, tiers] = self._keys[tenant, key, kind, tiers].plus(counts)
        tenants = self._tenants[kind, tiers]
        tenants[tenant] = tenants.get(tenant, AgreementCounts()).plus(counts)
        self.is_verified = self.is_verified or counts.verified > 0

    def compared(self, place: AgreementPlace, tiers: tuple[int, ...], agreed: bool) -> None:
        """Count one comparison."""
        self.add(place, tiers, AgreementCounts(compared=1.0, agreed=float(agreed)))

    def verified(self, place: AgreementPlace, tiers: tuple[int, ...], lost: float) -> None:
        """Count one agreed answer that was verified; `lost`: P(it is worse than the strongest tier's), in [0, 1]."""
        self.add(place, tiers, AgreementCounts(verified=1.0, lost=lost))

    def levels(self, place: AgreementPlace, tiers: tuple[int, ...]) -> list[AgreementCounts]:
        """Return the counts of other tenants (bounded), of the tenant, of the key and of the system prompt."""
        tenant, key, prompt, kind = _owned(place)
        tenants = self._tenants.get((kind, tiers), {})
        others = AgreementCounts()
        for name, counts in tenants.items():
            if name != tenant:
                others = others.plus(counts.at_most(MOST_OF_A_TENANT))
        nothing = AgreementCounts()
        mine = self._keys.get((tenant, key, kind, tiers), nothing)
        prompts = self._prompts.get((tenant, key, prompt, kind, tiers), nothing)
        return [others, tenants.get(tenant, nothing) if place.tenant else nothing, mine, prompts]


def _owned(place: AgreementPlace) -> AgreementPlace:
    return place if place.tenant else place._replace(tenant=f"key {place.key}")
