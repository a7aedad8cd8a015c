"""How an adapter is trained, without what trains it: the fields of `Recipe` are options of `aio adapters train`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

BaseType = Literal["bfloat16", "float32"]


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All linear layers but the head are trained, with frozen base weights, float32 factors, AdamW without decay, the
    gradient's norm clipped to `clip`, and a learning rate that falls linearly to zero.
    """

    rank: Annotated[int, Meta(ge=1, le=512)] = 16
    """Rank of the adapter's factors."""
    alpha: Annotated[float, Meta(gt=0)] = 32.0
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    learning_rate: Annotated[float, Meta(gt=0)] = 2e-3
    """Learning rate at the start. It falls linearly to zero."""
    clip: Annotated[float, Meta(extra={"option": False})] = 1.0
    epochs: Annotated[int, Meta(ge=1)] = 1
    """How often each example is seen."""
    batch: Annotated[int, Meta(ge=1)] = 8
    """Examples per step."""
    base: BaseType = "bfloat16"
    """Number format of the frozen weights."""
    seed: int = 0
    """Seed of the first weights and of the order of the examples."""
