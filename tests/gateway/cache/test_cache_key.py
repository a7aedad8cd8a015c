"""What makes two requests the same, where that cannot be seen from outside."""

import msgspec

from gateway.cache.cache_key import CatalogueDigest
from tiers.catalog.load import load_catalog


def test_a_tier_that_was_replaced_changes_the_digest_of_the_catalogue() -> None:
    catalog, digest = load_catalog("laptop"), CatalogueDigest()
    first = digest.of(catalog.tiers, catalog.fingerprint)
    assert digest.of(catalog.tiers, catalog.fingerprint) == first
    sampling = msgspec.structs.replace(catalog.tiers[1].sampling, top_k=5)
    catalog.tiers[1] = msgspec.structs.replace(catalog.tiers[1], sampling=sampling)
    second = digest.of(catalog.tiers, catalog.fingerprint)
    assert second != first
    assert CatalogueDigest().of(load_catalog("laptop").tiers, catalog.fingerprint) == first
