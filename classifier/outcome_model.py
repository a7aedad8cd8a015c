"""P(tier k's answer is no worse than the strongest tier's), calibrated: the model behind every routing decision."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.decision import Prediction
from classifier.encoder import Encoder
from classifier.features import FEATURE_NAMES, surface_features
from classifier.heads import OPINIONS, Heads
from classifier.manifest import Manifest
from classifier.memory import Memory
from classifier.routing_input import RoutingInput
from classifier.tokens import tokenise

Float = npt.NDArray[np.float32]

# Nothing learned from some thousand prompts is surer than this.
P_MIN, P_MAX = 0.005, 0.995
CONTRIBUTIONS = 6
_EXPLAINED = (*FEATURE_NAMES, "topic", *OPINIONS[1:])


class EncodedTurn(NamedTuple):
    """One prompt as numbers, without its text: `features` [f], `embedding` [d], `word_logits` [heads], float32."""

    features: Float
    embedding: Float
    word_logits: Float


class Outcomes(NamedTuple):
    """Predictions for n prompts: `p` float32 [n, heads], calibrated and clipped; `novelty` float32 [n]."""

    p: Float
    novelty: Float


class OutcomeModel:
    """A loaded artefact. Immutable; `predict` is pure and safe from many threads.

    `catalogue_fingerprint` is the serving catalogue's: if the artefact's outcomes were measured on other models its
    probabilities are a prior, and say so.
    """

    def __init__(
        self, manifest: Manifest, encoder: Encoder, heads: Heads, memory: Memory, catalogue_fingerprint: str = ""
    ) -> None:
        self.manifest, self.encoder, self.heads, self.memory = manifest, encoder, heads, memory
        measured = manifest.catalogue_fingerprint and manifest.catalogue_fingerprint == catalogue_fingerprint
        self.kind: Literal["measured", "prior"] = "measured" if measured else "prior"
        self._tier_1_effects = heads.coef[:, 0] * heads.blend[0, 0]
        self._tier_1_base = _logit(float(memory.base_rates[0]))

    @property
    def version(self) -> str:
        return self.manifest.version

    def encode(self, prompt: RoutingInput) -> EncodedTurn:
        """The numbers this artefact's heads look at; what retraining stores in place of the text."""
        return encode_turn(self.encoder, prompt)

    def predict(self, prompt: RoutingInput) -> Prediction:
        """The outcome probabilities of one prompt, its novelty, and the features that moved them most."""
        turn = self.encode(prompt)
        design = self.heads.design(turn.features[None], turn.embedding[None])
        nearby = self.memory.look_up(turn.embedding[None])
        p = _probability(self.heads.logits(design, turn.word_logits[None], nearby.logits))[0]
        return Prediction(
            p_ok=[*p[: self.manifest.tiers - 1].tolist(), 1.0],
            kind=self.kind,
            novelty=float(nearby.novelty[0]),
            classifier_version=self.version,
            contributions=self._contributions(design[0], turn.word_logits, nearby.logits[0]),
        )

    def outcomes(
        self, features: Float, embedding: Float, word_logits: Float, own_rows: npt.NDArray[np.intp] | None = None
    ) -> Outcomes:
        """Predictions for many encoded prompts, rows as in `EncodedTurn`; `own_rows` as in `Memory.look_up`."""
        nearby = self.memory.look_up(embedding, own_rows)
        logits = self.heads.logits(self.heads.design(features, embedding), word_logits, nearby.logits)
        return Outcomes(_probability(logits), nearby.novelty)

    def _contributions(self, design: Float, word_logits: Float, nearby_logits: Float) -> list[tuple[str, float]]:
        """Largest additive parts of tier 1's logit, against an average prompt."""
        heads = self.heads
        parts = design * self._tier_1_effects
        known = len(FEATURE_NAMES)
        groups = (
            parts[known:].sum(),
            (word_logits[0] - self._tier_1_base) * heads.blend[1, 0],
            (nearby_logits[0] - self._tier_1_base) * heads.blend[2, 0],
        )
        effects = np.append(parts[:known], groups)
        largest = np.argsort(-np.abs(effects))[:CONTRIBUTIONS].tolist()
        return [(_EXPLAINED[i], round(float(effects[i]), 4)) for i in largest]


def encode_turn(encoder: Encoder, prompt: RoutingInput) -> EncodedTurn:
    """Surface features and encoding of one prompt; its words are cut once for both."""
    tokens = tokenise(prompt.turn)
    encoding = encoder.encode(prompt.turn, tokens)
    return EncodedTurn(surface_features(prompt.turn, tokens, prompt.turn_chars), *encoding)


def _probability(logits: Float) -> Float:
    return np.clip(1.0 / (1.0 + np.exp(-logits)), P_MIN, P_MAX).astype(np.float32)


def _logit(p: float) -> float:
    clipped = min(max(p, P_MIN), P_MAX)
    return float(np.log(clipped / (1 - clipped)))
