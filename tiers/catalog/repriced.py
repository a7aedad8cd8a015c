"""A catalogue with the prices of now, where it has none of its own."""

import msgspec

from tiers.catalog.catalog import Catalog
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.catalog.signed_prices import SignedPrices, current_embedding_price, current_price
from tiers.catalog.tier_spec import TierSpec


def repriced(catalog: Catalog, signed: SignedPrices | None) -> Catalog:
    """Return `catalog` with the prices of `signed`, else of the package's list as of now. Prices that the catalogue
    gives, and numbers of tiers, stay; a price that no list has any more does, too."""
    tiers = [_of_tier(tier, signed) if _is_open(tier) else tier for tier in catalog.tiers]
    embeddings = [_of_embedding(one, signed) if one.listed else one for one in catalog.embeddings]
    if tiers == catalog.tiers and embeddings == catalog.embeddings:
        return catalog
    return msgspec.structs.replace(catalog, tiers=tiers, embeddings=embeddings)


def _is_open(tier: TierSpec) -> bool:
    return tier.remote is not None and tier.remote.engine is None and bool(tier.price.listed or tier.price.estimated)


def _of_tier(tier: TierSpec, signed: SignedPrices | None) -> TierSpec:
    assert tier.remote is not None
    url = tier.remote.servers[0].base_url if tier.remote.servers else ""
    found = current_price(tier.remote.model, tier.provider, url, signed)
    return tier if found is None else msgspec.structs.replace(tier, price=found)


def _of_embedding(spec: EmbeddingSpec, signed: SignedPrices | None) -> EmbeddingSpec:
    found = current_embedding_price(str(spec.model), spec.provider, str(spec.url), signed)
    if found is None:
        return spec
    return msgspec.structs.replace(spec, input_usd_per_million=found.input_usd_per_million, listed=found.listed)
