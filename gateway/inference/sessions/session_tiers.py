"""Tiers of the catalogue as the policy of sessions sees them: prices by kind of token, and how long caches hold."""

from classifier.policy.sessions import SessionTier
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import reuse_usd
from tiers.catalog.tier_spec import TierSpec

LEAST_CACHED = 1024
"""Tokens of the shortest prompt that providers cache: OpenAI's and Anthropic's documentation of prompt caching."""
OWN_CACHE_SECONDS = 3600.0
"""For how long a server of ours is expected to hold a prefix: until it needs the room, which nothing tells."""


def session_tiers(catalog: Catalog, cache_seconds: float) -> list[SessionTier]:
    """Return the tiers, cheapest first. `cache_seconds`: for how long a provider's cache is expected to hold."""
    usual = usual_output(catalog)
    return [_tier(spec, cache_seconds, usual) for spec in catalog.tiers]


def usual_output(catalog: Catalog) -> int:
    """The most tokens that any tier is expected to answer, of which each tier's answers are a share."""
    return max(spec.expected_answer_tokens for spec in catalog.tiers)


def _tier(spec: TierSpec, cache_seconds: float, usual: int) -> SessionTier:
    price = spec.price
    saved = reuse_usd(spec, 1_000_000)
    write = price.input_usd_per_million
    if price.cache_write_usd_per_million is not None:
        write = price.cache_write_usd_per_million
    own = spec.remote is None
    return SessionTier(
        input_usd=price.input_usd_per_million,
        output_usd=price.output_usd_per_million,
        read_usd=price.input_usd_per_million - saved,
        write_usd=write,
        cache_seconds=OWN_CACHE_SECONDS if own else cache_seconds if saved > 0 else 0.0,
        min_cached_tokens=0 if own else LEAST_CACHED,
        output_ratio=spec.expected_answer_tokens / usual,
    )
