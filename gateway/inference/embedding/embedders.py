"""The embedding models of a catalogue, by name."""

from collections.abc import Mapping

from gateway.inference.embedding.core_embedder import CoreEmbedder
from gateway.inference.embedding.embedder import Embedder
from gateway.inference.embedding.encoder_embedder import EncoderEmbedder
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog


def embedders_of(catalog: Catalog, cores: Mapping[str, CoreClient]) -> dict[str, Embedder]:
    """Return an embedder per model, over `cores` by the catalogue's names; nothing is loaded yet. Raises
    `CatalogError`."""
    return {
        spec.name: CoreEmbedder(spec, cores) if spec.path is None else EncoderEmbedder(spec)
        for spec in catalog.embeddings
    }
