"""The embedding models of a catalogue, by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from gateway.inference.embedding.embedder import CoreEmbedder, Embedder
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog, EmbeddingSpec

if TYPE_CHECKING:
    from tiers.remote.embedding_client import EmbeddingClient


def embedders_of(catalog: Catalog, cores: Mapping[str, CoreClient]) -> "dict[str, Embedder | EmbeddingClient]":
    """Return an embedder per model, over `cores` by the catalogue's names; nothing is loaded or reached yet. Raises
    `CatalogError`."""
    return {spec.name: _embedder(spec, cores) for spec in catalog.embeddings}


async def close_clients(embedders: "Mapping[str, Embedder | EmbeddingClient]") -> None:
    """Close the connections to servers elsewhere."""
    for one in embedders.values():
        if one.spec.is_remote:
            await cast("EmbeddingClient", one).close()


def _embedder(spec: EmbeddingSpec, cores: Mapping[str, CoreClient]) -> "Embedder | EmbeddingClient":
    if spec.is_remote:
        from tiers.remote.embedding_client import EmbeddingClient

        return EmbeddingClient(spec)
    if spec.path is None:
        return CoreEmbedder(spec, cores)
    from gateway.inference.embedding.encoder_embedder import EncoderEmbedder

    return EncoderEmbedder(spec)
