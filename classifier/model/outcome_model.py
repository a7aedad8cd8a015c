"""P(tier k's answer is no worse than the strongest tier's), calibrated: the model behind every routing decision.

It has one calibrated linear head per outcome over an encoded turn. `Manifest`, an artefact's manifest.json, says how
the model was trained, with its metrics and the hashes of its files.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.decision import Prediction
from classifier.encoders.static_encoder import BatchEncoder, Encoder
from classifier.features.routing_input import RoutingInput
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES, surface_features
from classifier.model.knn_memory import Memory, Nearby
from classifier.model.learned import LearnedHead
from classifier.native import KERNELS

SCHEMA_VERSION = 1


class TrainingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """When the outcomes were collected (ISO 8601; None if the source does not say) and their source."""

    start: str | None
    end: str | None
    source: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What one level of retraining learned, on `labels` labels that it was not fitted on: `gain`, the reduction of
    squared error (in [0, 1]) against the table, of the table against the prior, and `utility` of its decisions
    likewise, with one-sided bounds of 95%. The last `adopted` one decides. Older versions have no utility."""

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
    """The metadata of an artefact.

    `tiers`: of the catalogue that it learned from, else of the outcomes that it was trained on. `heads`: names of the
    outcomes in the tensors' order ("no_worse_1", …, "correct_1", …). `catalogue_fingerprint`: of the models whose
    outcomes were measured; predictions for any other catalogue are a prior. `files`: name → SHA-256. `groups`: names of
    the clusters that `base.safetensors` numbers. `metrics`: numbers, such as the count of erased rows. `adequacy`:
    P(tier k's answer is as good as the strongest's) by complexity class, as learned for this catalogue, [4][tiers - 1];
    None: nothing was learned, and a prior replaces it. `levels`: of the retraining that made it, simplest first.
    """

    schema_version: int
    version: str
    parent: str | None
    tiers: int
    heads: list[str]
    feature_names: list[str]
    encoder: dict[str, Any]
    catalogue_fingerprint: str
    models: dict[str, list[str | None]]
    training_window: TrainingWindow
    counts: dict[str, int]
    data_sha256: str
    seed: int
    groups: list[str]
    metrics: dict[str, Any]
    files: dict[str, str]
    adequacy: list[list[float]] | None = None
    levels: list[Level] = []


Float = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[np.generic]]

CLIP = 5.0  # standard deviations; outliers must not extrapolate
_NAMES = ("mean", "scale", "coef", "bias")


class Heads:
    """Parameters for h outcomes over n inputs: surface features, embedding, word logits [h], neighbourhood logits [h].

    The word and neighbourhood logits of training rows are made without the row itself (cross-fitted; its own memory row
    left out), so that training matches serving. Each head sees both for every outcome. `mean`, `scale` [n] standardise
    the inputs; `coef` [n, h] and `bias` [h] give the logits.
    """

    def __init__(self, mean: Float, scale: Float, coef: Float, bias: Float) -> None:
        if not mean.shape == scale.shape == coef.shape[:1] or coef.shape[1:] != bias.shape:
            raise ValueError(
                f"heads: mean {mean.shape}, scale {scale.shape}, coef {coef.shape}, bias {bias.shape} do not agree"
            )
        self.mean, self.scale, self.coef, self.bias = mean, scale, coef, bias
        self._inverse_scale = (1.0 / scale).astype(np.float32)
        self._first = coef[:, 0].copy()
        self._native = self._for_kernels() if KERNELS is not None else None

    def design(self, features: Float, embedding: Float, word_logits: Float, neighbourhood_logits: Float) -> Float:
        """Return the standardised inputs [..., n]; the arguments' leading axes agree."""
        standard = np.concatenate((features, embedding, word_logits, neighbourhood_logits), axis=-1)
        standard -= self.mean
        standard *= self._inverse_scale
        # Twice as fast as np.clip on one row.
        inputs: Float = np.minimum(np.maximum(standard, -CLIP, out=standard), CLIP, out=standard)
        return inputs

    def logits(self, design: Float) -> Float:
        """Return the calibrated logits [..., h] of the outcomes."""
        logits: Float = design @ self.coef
        logits += self.bias
        return logits

    def explained(
        self, features: Float, embedding: Float, word_logits: Float, neighbourhood_logits: Float, most: int
    ) -> tuple[Float, list[tuple[int, float]]]:
        """Return the calibrated logits [h] of one prompt and the `most` largest additive parts of the first logit,
        relative to an average prompt, largest first: (i, effect) for feature i, or for the embedding, the word logits
        and the neighbourhood as wholes, numbered after the features."""
        given = (features, embedding, word_logits, neighbourhood_logits)
        if KERNELS is not None:
            logits = np.empty(len(self.bias), np.float32)
            return logits, KERNELS.apply_heads(self._native, *given, logits, most)
        design = self.design(*given)
        parts, known = design * self._first, len(features)
        # At most `most` features can be among the largest parts.
        largest = np.abs(parts[:known]).argsort()[-most:]
        effects = list(zip(largest.tolist(), parts.take(largest).tolist(), strict=True))
        wholes = np.array([known, known + len(embedding), known + len(embedding) + len(word_logits)])
        effects += enumerate(np.add.reduceat(parts, wholes).tolist(), start=known)
        effects.sort(key=_size, reverse=True)
        return self.logits(design), effects[:most]

    def _for_kernels(self) -> object:
        parts = (self.mean, self._inverse_scale, self.coef, self.bias)
        return KERNELS.make_heads(*(np.ascontiguousarray(part, np.float32) for part in parts), CLIP)

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the parameters by name, float32."""
        return {f"heads.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "Heads":
        """Rebuild the heads from `tensors`. Raises KeyError for a missing one, ValueError for bad shapes or numbers."""
        mean, scale, coef, bias = (tensors[f"heads.{name}"].astype(np.float32) for name in _NAMES)
        return cls(mean, scale, coef, bias)


def _size(effect: tuple[int, float]) -> float:
    return abs(effect[1])


# Bounds on probabilities: a few thousand prompts justify no greater certainty.
P_MIN, P_MAX = 0.005, 0.995
LOGIT_MAX = 500.0  # beyond, the exponential overflows
CONTRIBUTIONS = 6
_EXPLAINED = (*FEATURE_NAMES, "topic", "wording", "neighbourhood")


class EncodedTurn(NamedTuple):
    """One encoded prompt, without its text: `features` [f], `embedding` [d], `word_logits` [heads], float32; the last
    empty where no head reads them."""

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
    """Return surface features and encoding of one prompt; its words are split once for both, or are its `tokens`."""
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
