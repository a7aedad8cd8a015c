"""Entries of embedding models on servers elsewhere: the address, the key's variable and the price that they leave out.
Imported where a catalogue has embeddings."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tiers.catalog.catalog import EmbeddingSpec
from tiers.catalog.price_list import listed_embedding
from tiers.catalog.providers import PROVIDERS, provider_remote

REMOTE_EMBEDDING_TOKENS = 8192
"""Most tokens of a text that a provider's embedding models read."""


def of_a_server(embedding: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give an embedding model of a server elsewhere its address, the variable of its key and a usual length."""
    from tiers.catalog.defaults import names_provider

    if names_provider(embedding):
        url, key = embedding.get("url"), embedding.get("api_key_env")
        remote = provider_remote(embedding["provider"], embedding["model"], url, key, os.environ)
        found = {"url": remote["base_url"], "api_key_env": remote.get("api_key_env")}
    elif "url" in embedding:
        found = {}
    else:
        return embedding
    return {"max_tokens": REMOTE_EMBEDDING_TOKENS} | dict(embedding) | found


def with_listed_price(spec: EmbeddingSpec) -> EmbeddingSpec:
    """Return the embedding model with the price list's price, where it has none and the list is sure."""
    if spec.input_usd_per_million is not None or spec.url is None or spec.model is None:
        return spec
    found = listed_embedding(spec.model, provider=spec.provider, base_url=spec.url)
    if found is None:
        return spec
    return msgspec.structs.replace(spec, input_usd_per_million=found.input_usd_per_million, listed=found.listed)


def check_embedding(embedding: EmbeddingSpec, where: str) -> Iterator[str]:
    """Check an entry with a provider or a url."""
    from tiers.catalog.validate import check_key_name, check_url

    given = [name for name in ("path", "layer") if getattr(embedding, name) is not None]
    if embedding.model is None or given or embedding.shortenable or embedding.pooling != "mean":
        yield f"{where}: a server elsewhere needs model, and knows no path, layer, pooling and shortenable"
    if embedding.provider is not None and PROVIDERS[embedding.provider].kind not in ("openai-provider", "azure"):
        yield f"{where}.provider = {embedding.provider!r}: its API has no embeddings of OpenAI's form; give a url"
    elif embedding.url is not None:
        yield from check_url(f"{where}.url", embedding.url)
    yield from check_key_name(where, embedding.api_key_env)
