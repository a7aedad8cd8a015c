"""What each tier of a catalogue is like, for decisions by class while none of its outcomes are known."""

from classifier.complexity.classes import Complexity
from classifier.complexity.prior import adequacies, like_of
from tiers.catalog import Catalog
from tiers.catalog_defaults import model_billions
from tiers.tier_spec import ChainOfThoughtSpec, TierSpec

# Below so many billions of parameters a model is like 3B, then like 8B, then like 70B.
SMALL_BELOW, MEDIUM_BELOW = 5.0, 24.0


def tier_kinds(catalog: Catalog) -> tuple[Complexity, ...]:
    """By tier: its declared class, else by its model's size where that is known, else by its place, spread evenly from
    the weakest kind to the strongest."""
    spread = like_of(len(catalog.tiers))
    return tuple(
        _kind(tier, model_billions(catalog, tier), usual) for tier, usual in zip(catalog.tiers, spread, strict=True)
    )


def tier_prior(catalog: Catalog) -> list[list[float]]:
    """[4][tiers]: P(good enough) of each tier by class before anything was learned of the catalogue."""
    found: list[list[float]] = adequacies(tier_kinds(catalog)).tolist()
    return found


def _kind(tier: TierSpec, billions: float | None, usual: Complexity) -> Complexity:
    if tier.tier_class is not None:
        return Complexity[tier.tier_class.value]
    if billions is None:
        return usual
    kind = Complexity(1 + (billions >= SMALL_BELOW) + (billions >= MEDIUM_BELOW))
    # A model that thinks first is like the next kind.
    return Complexity(min(kind + isinstance(tier.policy, ChainOfThoughtSpec), Complexity.EXPERT))
