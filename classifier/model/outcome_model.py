"""P(tier k's answer is no worse than the strongest tier's), calibrated: the model behind every routing decision."""

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.decision import Prediction
from classifier.encoders.static_encoder import BatchEncoder, Encoder
from classifier.features.routing_input import RoutingInput
from classifier.features.surface_features import FEATURE_NAMES, surface_features
from classifier.features.words import tokenise
from classifier.model.heads import Heads
from classifier.model.knn_memory import Memory, Nearby
from classifier.model.learned import LearnedHead
from classifier.model.manifest import Manifest

Float = npt.NDArray[np.float32]

# Bounds on probabilities: a few thousand prompts justify no greater certainty.
P_MIN, P_MAX = 0.005, 0.995
LOGIT_MAX = 500.0  # beyond, the exponential overflows
CONTRIBUTIONS = 6
_EXPLAINED = (*FEATURE_NAMES, "topic", "wording", "neighbourhood")


class EncodedTurn(NamedTuple):
    """One encoded prompt, without its text: `features` [f], `embedding` [d], `word_logits` [heads], float32."""

    features: Float
    embedding: Float
    word_logits: Float


class Outcomes(NamedTuple):
    """Predictions for n prompts: `p` float32 [n, heads], calibrated and clipped; `novelty` float32 [n]."""

    p: Float
    novelty: Float


class OutcomeModel:
    """A loaded artefact. Immutable; `predict` is pure and thread-safe.

    `catalogue_fingerprint` is the serving catalogue's. `kind` is "measured" if the artefact has a table learned from
    that catalogue's outcomes; else its predictions are a prior. `learned_head`: what was learned of all keys with the
    table and replaces it, if any.
    """

    def __init__(
        self,
        manifest: Manifest,
        encoder: Encoder,
        heads: Heads,
        memory: Memory,
        catalogue_fingerprint: str = "",
        learned_head: LearnedHead | None = None,
    ) -> None:
        self.manifest, self.encoder, self.heads, self.memory = manifest, encoder, heads, memory
        self.learned_head = learned_head
        learned = manifest.adequacy is not None and bool(manifest.catalogue_fingerprint)
        measured = learned and manifest.catalogue_fingerprint == catalogue_fingerprint
        self.kind: Literal["measured", "prior"] = "measured" if measured else "prior"

    def for_catalogue(self, fingerprint: str) -> "OutcomeModel":
        """Return the same artefact for serving the catalogue of this fingerprint."""
        return OutcomeModel(self.manifest, self.encoder, self.heads, self.memory, fingerprint, self.learned_head)

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
        """Return the inputs of this artefact's heads; retraining stores them instead of the text."""
        return encode_turn(self.encoder, prompt)

    def predict(self, prompt: RoutingInput) -> Prediction:
        """Return the outcome probabilities of one prompt, its novelty, and the features with the largest effects."""
        turn = self.encode(prompt)
        return self.prediction(turn, self.memory.look_up_one(turn.embedding))

    def prediction(self, turn: EncodedTurn, nearby: Nearby) -> Prediction:
        """Return the prediction for an encoded prompt and its neighbourhood."""
        logits, effects = self.heads.explained(*turn, nearby.logits, CONTRIBUTIONS)
        # Only seven numbers: array operations would take longer than this loop.
        p = [min(max(1.0 / (1.0 + math.exp(-max(x, -LOGIT_MAX))), P_MIN), P_MAX) for x in logits.tolist()]
        weaker = self.manifest.tiers - 1
        return Prediction(
            p_ok=[*p[:weaker], 1.0],
            p_correct=p[weaker:],
            kind=self.kind,
            novelty=nearby.novelty,
            classifier_version=self.manifest.version,
            contributions=[(_EXPLAINED[i], round(effect, 4)) for i, effect in effects],
        )

    def outcomes(
        self, features: Float, embedding: Float, word_logits: Float, own_rows: npt.NDArray[np.intp] | None = None
    ) -> Outcomes:
        """Predict many encoded prompts, rows as in `EncodedTurn`; `own_rows` as in `Memory.look_up`."""
        nearby = self.memory.look_up(embedding, own_rows)
        design = self.heads.design(features, embedding, word_logits, nearby.logits)
        return Outcomes(_probability(self.heads.logits(design)), nearby.novelty)


def encode_turn(encoder: Encoder, prompt: RoutingInput, tokens: Sequence[str] | None = None) -> EncodedTurn:
    """Return surface features and encoding of one prompt; its words are split once for both, unless its `tokens` are
    given."""
    if tokens is None:
        tokens = tokenise(prompt.turn)
    features = surface_features(prompt.turn, tokens, prompt.turn_chars)
    return EncodedTurn(features, *encoder.encode(prompt.turn, tokens, features))


def encode_turns(encoder: Encoder, prompts: Sequence[RoutingInput]) -> list[EncodedTurn]:
    """Encode many prompts with a batching encoder."""
    if not isinstance(encoder, BatchEncoder):
        return [encode_turn(encoder, prompt) for prompt in prompts]
    features = [surface_features(p.turn, tokenise(p.turn), p.turn_chars) for p in prompts]
    encodings = encoder.encode_many([p.turn for p in prompts])
    return [EncodedTurn(f, *e) for f, e in zip(features, encodings, strict=True)]


def _probability(logits: Float) -> Float:
    p = 1.0 / (1.0 + np.exp(-logits))
    return np.minimum(np.maximum(p, P_MIN), P_MAX).astype(np.float32, copy=False)
