"""What each tier of a catalogue is like, for decisions by class while none of its outcomes are known."""

from classifier.complexity.classes import Complexity
from classifier.complexity.prior import like_of
from tiers.catalog import Catalog


def tier_kinds(catalog: Catalog) -> tuple[Complexity, ...]:
    """By tier: its declared class, else by its place, spread evenly from the weakest kind to the strongest."""
    spread = like_of(len(catalog.tiers))
    return tuple(
        usual if spec.tier_class is None else Complexity[spec.tier_class.value]
        for spec, usual in zip(catalog.tiers, spread, strict=True)
    )
