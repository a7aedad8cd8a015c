"""A target: a server that is no tier, which routing never chooses by itself: requests, chains and rules name it."""

from typing import Annotated

import msgspec

from tiers.catalog.tier_spec import TierSpec


class TargetSpec(TierSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry like a tier's, on a server elsewhere. `stands_for`: the name of the tier that its answers count as, in
    records and permissions; default: the first tier whose `fallback` names it, else the strongest. Its `number` is that
    tier's. Without a price it has that tier's, as an estimate. `fallback`: the targets that stand in for it where a
    request or a rule names it, and tiers where `fallback_named` is set; None: for a rule, that tier and its chain."""

    stands_for: Annotated[str, msgspec.Meta(min_length=1)] | None = None
