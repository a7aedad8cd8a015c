"""What `aio check` says of embeddings of servers elsewhere, each of which is asked for one vector."""

import asyncio

import msgspec

from tiers.catalog.catalog import Catalog
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.errors import TierError

TEXT = "What is the capital of Japan?"


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """The length of the vector that the model of the entry `name` gave. `problem`: why it gave none and what to do; ""
    if it did."""

    name: str
    dimensions: int = 0
    problem: str = ""


async def ask_embeddings(catalog: Catalog) -> list[EmbeddingAnswer]:
    """Return what each server elsewhere answers; those that AIO computes itself are not asked."""
    return list(await asyncio.gather(*(_asked(spec) for spec in catalog.embeddings if spec.is_remote)))


async def _asked(spec: EmbeddingSpec) -> EmbeddingAnswer:
    from tiers.remote.embedding_client import EmbeddingClient, EmbeddingCounter

    client = EmbeddingClient(spec)
    try:
        [vector] = (await client.embed([TEXT], {}, EmbeddingCounter())).vectors
    except TierError as error:
        return EmbeddingAnswer(spec.name, problem=str(error))
    finally:
        await client.close()
    return EmbeddingAnswer(spec.name, dimensions=vector.size)
