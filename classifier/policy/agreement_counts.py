"""How often cheap answers agree, and how often an agreed one is worse: counts by tenant, key, system prompt and kind.

The estimate begins with what recorded ladders say of the kind of answer (`prior_rates`) and goes from all tenants to
the caller's tenant, its key and its system prompt. Each level moves the one above by its counts: (n0 parent + count) /
(n0 + n), and none counts what a narrower one does. What other tenants know weighs little: none counts for more than a
fifth of n0, as in `classifier.local.cells`.

A verdict of a judge that errs in a share e is corrected for it, and weighs (1 - 2 e)^2 (Rogan and Gladen 1978): else
its errors are counted as losses, which the more verdicts there are the more certainly speak against agreement.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

# Pseudo-counts of the estimate above, and the most comparisons of one tenant that count for others.
N0 = 20.0
MOST_OF_A_TENANT = N0 / 5
# A judge of less says nothing that would be worth dividing by.
LEAST_INFORMED = 0.05


class AgreementCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of compared answers. They are weights, so not always whole."""

    compared: float = 0.0
    """Sets of answers that were compared."""
    agreed: float = 0.0
    """Sets of them that did agree."""
    verified: float = 0.0
    """Agreed answers that were compared with the strongest tier's."""
    lost: float = 0.0
    """Verified answers that were worse."""

    def plus(self, other: "AgreementCounts") -> "AgreementCounts":
        """Return the sum of both."""
        return AgreementCounts(
            compared=self.compared + other.compared,
            agreed=self.agreed + other.agreed,
            verified=self.verified + other.verified,
            lost=self.lost + other.lost,
        )

    def minus(self, other: "AgreementCounts") -> "AgreementCounts":
        """Return what is left without `other`, which is part of this."""
        return AgreementCounts(
            compared=self.compared - other.compared,
            agreed=self.agreed - other.agreed,
            verified=self.verified - other.verified,
            lost=self.lost - other.lost,
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
    """Whose answers are compared: the tenant ("": the key is its own), the key, its system prompt, the kind."""

    tenant: str
    key: str
    prompt: str
    kind: str


class AgreementRates(NamedTuple):
    """How often answers agree, and what an agreed answer loses."""

    agreed: float
    """P(the answers agree)."""
    lost: float
    """P(an agreed answer is worse than the strongest tier's)."""


class KindPrior(NamedTuple):
    """What ladders have in common for a kind of answer, with the standard deviation between ladders: `agreed`, P(agree)
    over P(one is as good) P(the other is as good); `lost`, P(an agreed answer is worse) over P(its tier's are)."""

    agreed: float
    agreed_spread: float
    lost: float
    lost_spread: float


# Means and deviations over the recorded ladders of two cheap tiers below one of the best three models, rounded:
# docs/results/quality.md. Of other kinds, and between files, ladders differ more.
KIND_PRIORS = {
    "choice": KindPrior(0.73, 0.12, 0.35, 0.1),
    "entity": KindPrior(0.73, 0.12, 0.27, 0.1),
    "number": KindPrior(1.0, 0.1, 0.15, 0.08),
}
OTHER_KINDS = KindPrior(0.75, 0.25, 0.3, 0.12)


def prior_rates(kind: str, partner: float, middle: float, edge: float) -> AgreementRates:
    """Return the rates of answers of `kind` by the P(as good) of the tier whose answer is sent, `middle`, and of the
    other, `partner`. `edge`: deviations by which they are better than in the mean of ladders."""
    prior = KIND_PRIORS.get(kind, OTHER_KINDS)
    agreed = (prior.agreed + edge * prior.agreed_spread) * partner * middle
    lost = (prior.lost - edge * prior.lost_spread) * (1.0 - middle)
    return AgreementRates(min(max(agreed, 0.0), 1.0), min(max(lost, 0.0), 1.0))


def estimated_rates(levels: Sequence[AgreementCounts], prior: AgreementRates) -> AgreementRates:
    """Return `prior` moved by the counts of each of `levels`, from the widest to the narrowest."""
    agreed, lost = prior
    for level in levels:
        agreed = (N0 * agreed + level.agreed) / (N0 + level.compared)
        lost = (N0 * lost + level.lost) / (N0 + level.verified)
    # Losses that are corrected for the judge's errors may add up to less than none, or to more than all.
    return AgreementRates(agreed, min(max(lost, 0.0), 1.0))


class AgreementTable:
    """The counts of every place and group of tiers. Not thread-safe: one owner writes and reads it."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[str, str, str, str, tuple[int, ...]], AgreementCounts] = defaultdict(AgreementCounts)
        self._keys: dict[tuple[str, str, str, tuple[int, ...]], AgreementCounts] = defaultdict(AgreementCounts)
        self._tenants: dict[tuple[str, tuple[int, ...]], dict[str, AgreementCounts]] = defaultdict(dict)

    def add(self, context: AgreementPlace, tiers: tuple[int, ...], counts: AgreementCounts) -> None:
        """Add `counts` of answers that `tiers` (ascending) gave in `context`."""
        tenant, key, prompt, kind = _owned(context)
        whole = (tenant, key, prompt, kind, tiers)
        self._prompts[whole] = self._prompts[whole].plus(counts)
        self._keys[tenant, key, kind, tiers] = self._keys[tenant, key, kind, tiers].plus(counts)
        tenants = self._tenants[kind, tiers]
        tenants[tenant] = tenants.get(tenant, AgreementCounts()).plus(counts)

    def compared(self, context: AgreementPlace, tiers: tuple[int, ...], agreed: bool) -> None:
        self.add(context, tiers, AgreementCounts(compared=1.0, agreed=float(agreed)))

    def verified(self, context: AgreementPlace, tiers: tuple[int, ...], lost: float, informed: float = 1.0) -> None:
        """Count one agreed answer that was verified; `lost`: P(it is worse than the strongest tier's), in [0, 1], as a
        judge of the informedness `informed`, 1 - 2 e, said."""
        weight = max(informed, LEAST_INFORMED) ** 2
        corrected = (lost - 0.5) / max(informed, LEAST_INFORMED) + 0.5
        self.add(context, tiers, AgreementCounts(verified=weight, lost=weight * corrected))

    def levels(self, context: AgreementPlace, tiers: tuple[int, ...]) -> list[AgreementCounts]:
        """Return the counts of other tenants (bounded), of the tenant's other keys, of the key's other system prompts,
        and of the system prompt."""
        tenant, key, prompt, kind = _owned(context)
        tenants = self._tenants.get((kind, tiers), {})
        others = AgreementCounts()
        for name, counts in tenants.items():
            if name != tenant:
                others = others.plus(counts.at_most(MOST_OF_A_TENANT))
        nothing = AgreementCounts()
        whole = tenants.get(tenant, nothing)
        mine = self._keys.get((tenant, key, kind, tiers), nothing)
        prompts = self._prompts.get((tenant, key, prompt, kind, tiers), nothing)
        return [others, whole.minus(mine), mine.minus(prompts), prompts]


def _owned(context: AgreementPlace) -> AgreementPlace:
    return context if context.tenant else context._replace(tenant=f"key {context.key}")
