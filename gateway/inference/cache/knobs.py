"""The live knobs of the response cache."""

from typing import Annotated

import msgspec
from msgspec import Meta


class CacheKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while serving; the bounds are enforced and the descriptions shown."""

    enabled: Annotated[bool, Meta(description="Whether answers are kept, and equal concurrent requests share one.")] = (
        True
    )
    ttl_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds for which a kept answer is given again.")
    ] = 30.0
    max_entries: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Answers that a process keeps; the least recently used goes first.")
    ] = 10_000
    max_bytes: Annotated[
        int, Meta(ge=0, le=2**40, description="Bytes of the answers that a process keeps, and of the largest of them.")
    ] = 64 * 2**20
    semantic: Annotated[
        bool, Meta(description="Whether a prompt also gets the kept answer to another wording of the same prompt.")
    ] = False
    semantic_threshold: Annotated[
        float, Meta(ge=0, le=1, description="Cosine of the two prompts' embeddings that such an answer needs.")
    ] = 0.99
