"""What is known of a catalogue's tiers by complexity class before any request: measured, or by what they are like."""

from pathlib import Path

from classifier.complexity.classes import Complexity, like_of
from classifier.local.cells import ClassTable, prior_table, whole_table
from quality.evaluation.everyday_outcomes import OWN_FOLDER, with_measured
from tiers.catalog.catalog import Catalog
from tiers.catalog.defaults import model_billions
from tiers.catalog.tier_spec import ChainOfThoughtSpec, TierSpec

# Below so many billions of parameters a model is like 3B, then like 8B, then like 70B.
SMALL_BELOW, MEDIUM_BELOW = 5.0, 24.0


def class_prior(catalog: Catalog, data_path: Path) -> ClassTable:
    """The table that versions of the classifier begin with: the prior of the tiers' kinds, with the results of everyday
    tasks where they were measured (`aio classifier measure`) on exactly these tiers."""
    return with_measured(prior_table(tier_kinds(catalog)), catalog, [data_path / OWN_FOLDER])


def tier_prior(catalog: Catalog, data_path: Path) -> list[list[float]]:
    """[4][tiers]: the same as plain numbers, with the strongest tier's, which are 1."""
    table: list[list[float]] = whole_table(class_prior(catalog, data_path)).tolist()
    return table


def tier_kinds(catalog: Catalog) -> tuple[Complexity, ...]:
    """By tier: its declared class, else by its model's size where that is known, else by its place, spread evenly from
    the weakest kind to the strongest."""
    spread = like_of(len(catalog.tiers))
    return tuple(
        _kind(tier, model_billions(catalog, tier), usual) for tier, usual in zip(catalog.tiers, spread, strict=True)
    )


def _kind(tier: TierSpec, billions: float | None, usual: Complexity) -> Complexity:
    if tier.tier_class is not None:
        return Complexity[tier.tier_class.value]
    if billions is None:
        return usual
    kind = Complexity(1 + (billions >= SMALL_BELOW) + (billions >= MEDIUM_BELOW))
    # A model that thinks first is like the next kind.
    return Complexity(min(kind + isinstance(tier.policy, ChainOfThoughtSpec), Complexity.EXPERT))
