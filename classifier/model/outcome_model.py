"""A loaded artefact: the encoder of turns, and what was learned of a catalogue, on which every routing decision stands.

`Manifest`, an artefact's manifest.json, says how it was trained, with the hashes of its files.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import BatchEncoder, Encoder
from classifier.features.routing_input import RoutingInput
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import surface_features
from classifier.model.learned import LearnedHead

SCHEMA_VERSION = 2


class TrainingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """When the outcomes were collected (ISO 8601; None if the source does not say) and their source."""

    start: str | None
    end: str | None
    source: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What one level of retraining learned, on `labels` labels that it was not fitted on: `gain`, the reduction of
    squared error (in [0, 1]) against the last level adopted before it, of the table against the prior, and
    `utility` of its decisions likewise, with one-sided bounds of 95%. The last `adopted` one decides. Older versions
    have no utility, and compared all with the table."""

    name: str
    labels: int
    gain: float
    low: float
    high: float
    adopted: bool
    utility: float = 0.0
    utility_low: float = 0.0
    utility_high: float = 0.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an artefact."""

    schema_version: int
    version: str
    parent: str | None
    tiers: int
    """Tiers of the catalogue that it learned from, else of the outcomes that it was trained on."""
    feature_names: list[str]
    encoder: dict[str, Any]
    catalogue_fingerprint: str
    """Fingerprint of the models whose outcomes were measured; predictions for any other catalogue are a prior."""
    models: dict[str, list[str | None]]
    training_window: TrainingWindow
    counts: dict[str, int]
    data_sha256: str
    seed: int
    files: dict[str, str]
    """SHA-256 by name."""
    adequacy: list[list[float]] | None = None
    """P(tier k's answer is as good as the strongest's) by complexity class, as learned for this catalogue, [4][tiers -
    1]; None: nothing was learned, and a prior replaces it.
    """
    levels: list[Level] = []
    """Levels of the retraining that made it, simplest first."""
    heads: list[str] = []
    """Outcomes that encoders of earlier releases predicted too; labels stored with such an encoder may have as many
    numbers after their features.
    """


Float = npt.NDArray[np.float32]


class EncodedTurn(NamedTuple):
    """One encoded prompt, without its text: `features` [f] and `embedding` [d], float32."""

    features: Float
    embedding: Float


class OutcomeModel:
    """A loaded artefact; immutable and thread-safe.

    `catalogue_fingerprint` is the serving catalogue's. `kind` is "measured" if the artefact has a table learned from
    that catalogue's outcomes; else its predictions are a prior. `learned_head`: what was learned of all keys with the
    table and replaces it, if any.
    """

    def __init__(
        self,
        manifest: Manifest,
        encoder: Encoder,
        catalogue_fingerprint: str = "",
        learned_head: LearnedHead | None = None,
    ) -> None:
        self.manifest, self.encoder, self.learned_head = manifest, encoder, learned_head
        learned = manifest.adequacy is not None and bool(manifest.catalogue_fingerprint)
        measured = learned and manifest.catalogue_fingerprint == catalogue_fingerprint
        self.kind: Literal["measured", "prior"] = "measured" if measured else "prior"

    def for_catalogue(self, fingerprint: str) -> "OutcomeModel":
        """Return the same artefact for serving the catalogue of this fingerprint."""
        return OutcomeModel(self.manifest, self.encoder, fingerprint, self.learned_head)

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def adequacy(self) -> Float | None:
        """Return [4, tiers - 1]: P(as good as the strongest) by class, as learned; None if none was learned."""
        return None if self.manifest.adequacy is None else np.array(self.manifest.adequacy, np.float32)

    @cached_property
    def encoder_hash(self) -> str:
        """Hash of the encoder's description: whatever was fitted on its embeddings needs the same encoder."""
        return hashlib.sha256(msgspec.json.encode(self.manifest.encoder, order="sorted")).hexdigest()[:16]

    def encode(self, prompt: RoutingInput) -> EncodedTurn:
        """Return what is stored of the prompt instead of its text."""
        return encode_turn(self.encoder, prompt)


def encode_turn(encoder: Encoder, prompt: RoutingInput, tokens: Sequence[str] | None = None) -> EncodedTurn:
    """Return surface features and encoding of one prompt; its words are split once for both, or are its `tokens`."""
    if tokens is None:
        tokens = tokenise(prompt.turn)
    features = surface_features(prompt.turn, tokens, prompt.turn_chars)
    return EncodedTurn(features, encoder.encode(prompt.turn, tokens))


def encode_turns(encoder: Encoder, prompts: Sequence[RoutingInput]) -> list[EncodedTurn]:
    """Encode many prompts with a batching encoder."""
    if not isinstance(encoder, BatchEncoder):
        return [encode_turn(encoder, prompt) for prompt in prompts]
    features = [surface_features(p.turn, tokenise(p.turn), p.turn_chars) for p in prompts]
    encodings = encoder.encode_many([p.turn for p in prompts])
    return [EncodedTurn(f, e) for f, e in zip(features, encodings, strict=True)]
