"""A catalogue's entry for a model that returns vectors."""

from typing import Annotated

import msgspec

from inference_core.protocol.evidence import Pooling
from tiers.catalog.tier_spec import Count, NonNegative


class EmbeddingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `model` and `path` is set.

    `model`: a model of the CPU's core, whose hidden state after `layer` of its layers (default: all) is pooled.
    `path`: a folder with an encoder's checkpoint (BERT, DistilBERT, ModernBERT and their kind), whose last state is
    averaged. Vectors have length 1. `shortenable`: it was trained so that the first entries of a vector are a vector
    too (Kusupati et al. 2022, "Matryoshka representation learning"), so that callers may ask for fewer `dimensions`.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: str | None = None
    path: str | None = None
    layer: Count | None = None
    pooling: Pooling = "mean"
    max_tokens: Count = 512
    shortenable: bool = False
    input_usd_per_million: NonNegative
