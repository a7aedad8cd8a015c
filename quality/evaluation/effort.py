"""How much of two models is compared: the fields of `Effort` are options of `aio quality compare`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure."""

    text_tokens: Annotated[int, Meta(ge=2)] = msgspec.field(name="tokens", default=2048)
    """Maximum tokens of the text."""
    window: Annotated[int, Meta(ge=2)] = 512
    """Tokens in a context, at most the positions that both models have."""
    first_tokens: Annotated[int, Meta(ge=0, le=60)] = 60
    """Number of short questions whose first token is compared."""
    generations: Annotated[int, Meta(ge=0)] = 16
    """Number of greedy continuations."""
    generation_tokens: Annotated[int, Meta(ge=1)] = 64
    """Tokens of a continuation."""
    answer_tokens: Annotated[int, Meta(ge=1)] = 256
    """Maximum tokens of an answer to a question of --questions."""
