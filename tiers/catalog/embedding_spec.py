"""A catalogue's entry for a model that returns vectors."""

from typing import Annotated

import msgspec

from inference_core.protocol.commands import Pooling
from tiers.catalog.tier_spec import Count, NonNegative, Positive, Price, ProviderName


class EmbeddingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `model` and `path` is set. With a `provider` or a `url`, `model` is one of a server elsewhere.

    `model`: a model of the CPU's core, whose hidden state after `layer` of its layers (default: all) is pooled.
    `path`: a folder with an encoder's checkpoint (BERT, DistilBERT, ModernBERT and their kind), whose last state is
    averaged. Vectors have length 1. `shortenable`: it was trained so that the first entries of a vector are a vector
    too (Kusupati et al. 2022, "Matryoshka representation learning"), so that callers may ask for fewer `dimensions`.

    Of a server elsewhere: `provider` and `url` give the part of its address before `/embeddings`, `api_key_env` the
    environment variable of its key. `max_inputs`: most texts of one call; more are split. `max_tokens`: the most that
    the server reads of a text, which bounds its price; 8,192 unless given, as 512 of others. `local`: the server is in
    the operator's network. `input_usd_per_million`: None is the price list's. `listed`: the list that it comes from.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: str | None = None
    path: str | None = None
    layer: Count | None = None
    pooling: Pooling = "mean"
    max_tokens: Count = 512
    shortenable: bool = False
    input_usd_per_million: NonNegative | None = None
    provider: ProviderName | None = None
    url: str | None = None
    api_key_env: str | None = None
    max_inputs: Annotated[int, msgspec.Meta(ge=1, le=2048)] = 2048
    timeout_seconds: Positive = 60.0
    local: bool = False
    listed: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether a server elsewhere computes the vectors."""
        return self.url is not None

    @property
    def price(self) -> Price:
        """What its tokens cost, in the form of a tier's."""
        return Price(input_usd_per_million=self.usd_per_million, output_usd_per_million=0.0, listed=self.listed)

    @property
    def usd_per_million(self) -> float:
        """The price of a catalogue that was checked."""
        assert self.input_usd_per_million is not None
        return self.input_usd_per_million
