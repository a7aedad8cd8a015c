"""What makes two requests the same, where that cannot be seen from outside."""

import msgspec

from gateway.inference.cache.cache_key import CatalogueDigest
from tiers.catalog.load import load_catalog


def test_a_tier_or_weights_that_were_replaced_change_the_digest_of_the_catalogue() -> None:
    catalog, digest = load_catalog("laptop"), CatalogueDigest()
    weights = ["a", "b", "b", "b"]
    first = digest.of(catalog.tiers, catalog.fingerprint, weights)
    assert digest.of(catalog.tiers, catalog.fingerprint, list(weights)) == first
    assert digest.of(catalog.tiers, catalog.fingerprint, ["c", *weights[1:]]) != first
    assert digest.of(catalog.tiers, catalog.fingerprint, weights) == first
    sampling = msgspec.structs.replace(catalog.tiers[1].sampling, top_k=5)
    catalog.tiers[1] = msgspec.structs.replace(catalog.tiers[1], sampling=sampling)
    second = digest.of(catalog.tiers, catalog.fingerprint, weights)
    assert second != first
    assert CatalogueDigest().of(load_catalog("laptop").tiers, catalog.fingerprint, weights) == first
