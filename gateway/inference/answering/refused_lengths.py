"""The lengths at which tiers refused a request as too long: which of the others may still take it."""

from tiers.catalog.tier_spec import USUAL_CONTEXT, TierSpec
from tiers.errors import TierContextError
from tiers.tier import Tier


class RefusedLengths:
    """Of one request. A context must be longer than `_beyond` tokens; 0 while nothing is known of it."""

    def __init__(self) -> None:
        self._beyond = 0

    def note(self, error: TierContextError, tier: Tier, spec: TierSpec) -> None:
        """Note a refusal: the counts that it tells, else that the tier's own context is too short, if that is known."""
        told = max(error.prompt_tokens, error.max_context)
        if not told and not error.in_bytes and not _is_assumed(tier, spec):
            told = tier.max_context
        self._beyond = max(self._beyond, told)

    def admit(self, tier: Tier, spec: TierSpec) -> bool:
        """Whether the request may fit `tier`, whose context is longer than those that were too short, or unknown."""
        return not self._beyond or tier.max_context > self._beyond or _is_assumed(tier, spec)


def _is_assumed(tier: Tier, spec: TierSpec) -> bool:
    """Whether neither the catalogue nor the server tells the tier's context."""
    return spec.remote is not None and spec.remote.max_context is None and tier.max_context == USUAL_CONTEXT
