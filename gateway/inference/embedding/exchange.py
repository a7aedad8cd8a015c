"""Embeddings of servers elsewhere follow a catalogue that changes while requests are served."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from gateway.inference.embedding.embedder import Embedder
from tiers.catalog.catalog import Catalog
from tiers.catalog.embedding_spec import EmbeddingSpec

if TYPE_CHECKING:
    from tiers.remote.embedding_client import EmbeddingClient


def clients_for(before: Catalog, after: Catalog) -> "dict[str, EmbeddingClient]":
    """Return a client for each entry of a server elsewhere that `after` adds or changes in more than its price."""
    standing = {spec.name: _unpriced(spec) for spec in before.embeddings}
    changed = [spec for spec in after.embeddings if spec.is_remote and standing.get(spec.name) != _unpriced(spec)]
    if not changed:
        return {}
    from tiers.remote.embedding_client import EmbeddingClient

    return {spec.name: EmbeddingClient(spec) for spec in changed}


def computed_here(catalog: Catalog) -> list[EmbeddingSpec]:
    """Return the entries that this process or its core computes, without their prices."""
    return [_unpriced(spec) for spec in catalog.embeddings if not spec.is_remote]


def exchange_clients(
    embedders: "dict[str, Embedder | EmbeddingClient]", catalog: Catalog, clients: "Mapping[str, EmbeddingClient]"
) -> "list[EmbeddingClient]":
    """Make `embedders` what `catalog` lists, with `clients` for those that are new or changed, and return the clients
    that are replaced or gone, for the caller to close. Contains no await."""
    old = dict(embedders)
    embedders.clear()
    for spec in catalog.embeddings:
        embedders[spec.name] = embedder = clients.get(spec.name) or old.pop(spec.name)
        embedder.spec = spec
    return [cast("EmbeddingClient", one) for one in old.values()]


def _unpriced(spec: EmbeddingSpec) -> EmbeddingSpec:
    return msgspec.structs.replace(spec, input_usd_per_million=None, listed="")
