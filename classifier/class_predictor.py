"""Predictions by the prompt's complexity class, from a prior for the tiers or from what was learned about them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import like_of
from classifier.complexity.model import shipped_complexity, standardised
from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import HALF_NOVELTY, Prediction
from classifier.encoders.static_encoder import StaticEncoder
from classifier.errors import PolicyInputsError
from classifier.features import surface_features
from classifier.features.routing_input import RoutingInput
from classifier.features.stray_text import tokenise
from classifier.local.cells import ClassTable, prior_table
from classifier.local.own import OwnOutcomes
from classifier.model.learned import RefittedClasses
from classifier.model.outcome_model import EncodedTurn, OutcomeModel, encode_turn
from classifier.native import KERNELS
from classifier.registry.artefact import default_artefact, load_artefact

if TYPE_CHECKING:
    from classifier.complexity.encoder_classes import EncoderClasses

Float = npt.NDArray[np.float32]
NGRAMS = "n-grams"  # the name of the model that classifies by default


def threshold_of(quality_target: float | None) -> float:
    """Return the quality target, in [0, 1]; None is the default. Raises `PolicyInputsError` for one outside [0, 1]."""
    if quality_target is None:
        return DEFAULT_TARGET
    if not 0.0 <= quality_target <= 1.0:
        raise PolicyInputsError(f"quality target is {quality_target}; it must lie in [0, 1].")
    return quality_target


class ClassPredictor:
    """Predictions by complexity class, using one outcome model's encoding if its encoder is the one that the classes
    were trained with, else that of the shipped encoder. Raises `ArtefactError` if a file is missing.

    `prior`: of the catalogue's tiers, perhaps of another number; by default evenly spread tiers. A table that the model
    learned for this catalogue replaces it if the number of tiers agrees, and so does its `head` of all keys, which
    replaces that table. `kind` is "measured" if either comes from answers of the catalogue's own tiers, else "prior".

    `encoder` classifies in place of the n-gram model, except for a head, which learned from that model's classes.
    """

    def __init__(
        self, model: OutcomeModel, prior: ClassTable | None = None, encoder: "EncoderClasses | None" = None
    ) -> None:
        self._complexity = shipped_complexity()
        self._prior = prior_table(like_of(model.manifest.tiers)) if prior is None else prior
        learned = model.adequacy if model.kind == "measured" else None
        if learned is not None and learned.shape != self._prior.p.shape:
            learned = None
        self._table = self._prior.p if learned is None else learned
        self.head = None if learned is None else model.learned_head
        self._is_measured = self._prior.measured
        measured = learned is not None or self._is_measured
        self._kind: Literal["measured", "prior"] = "measured" if measured else "prior"
        # By tier, so that a decision needs four products for each.
        self._by_tier = [tuple(column) for column in self._table.T.tolist()]
        self._version = model.version
        self._encoder = encoder if self.head is None else None
        self._shares_encoder = model.manifest.encoder.get("sha256") == self._complexity.encoder
        self._encodes = model.encoder
        # What reads a turn in one call.
        self._native: tuple[object, ...] = ()
        if KERNELS is not None and self._shares_encoder and isinstance(model.encoder, StaticEncoder):
            parts = self._complexity.native, self._complexity.trees.native
            self._native = (surface_features.SURFACE, surface_features.NATIVE, model.encoder.native, *parts)

    @property
    def kind(self) -> Literal["measured", "prior"]:
        """Whether the table was learned for this catalogue."""
        return self._kind

    @property
    def class_model(self) -> str:
        """The name of the model that classifies."""
        return NGRAMS if self._encoder is None else self._encoder.name

    @property
    def tiers(self) -> int:
        return len(self._by_tier) + 1

    @property
    def table(self) -> Float:
        """[4, tiers - 1]: P(as good as the strongest) by class, learned for this catalogue or else the prior."""
        return self._table

    def classes(self, prompt: RoutingInput, turn: EncodedTurn, tokens: Sequence[str] | None = None) -> list[float]:
        """Return P of the four classes of `prompt`, encoded as `turn`, by the n-gram model, as labels keep
        them: the mixture of those of its readings. `tokens`: the words of its turn, where they were split before."""

        def read(reading: RoutingInput) -> list[float]:
            if reading is prompt:
                return self._classes_of_turn(prompt, turn, tokens)
            return self._classes_of_turn(reading)

        return _mixed(prompt, read)

    def whole_classes(
        self, prompt: RoutingInput, turn: EncodedTurn, tokens: Sequence[str] | None = None
    ) -> list[float]:
        """Return P of the four classes of all of the turn of `prompt`, encoded as `turn`, by the n-gram model, as
        labels keep them, too; empty where it is read whole. `tokens` as in `classes`."""
        return self._classes_of_turn(prompt, turn, tokens) if prompt.has_material else []

    def _classes_of_turn(
        self, prompt: RoutingInput, turn: EncodedTurn | None = None, tokens: Sequence[str] | None = None
    ) -> list[float]:
        """Return P of the classes of the turn of `prompt`, by the n-gram model; `turn`: what it was encoded as, where
        it was before, and `tokens` as in `classes`."""
        if turn is None and self._native and prompt.turn.isascii():
            return self._read_natively(prompt)[0]
        words = tokenise(prompt.turn) if tokens is None else tokens
        if turn is None or not self._shares_encoder:
            turn = encode_turn(self._encodes if self._shares_encoder else _shipped_model().encoder, prompt, words)
        return self._complexity.probabilities(prompt.turn, words, turn.features, turn.embedding)

    def _read_natively(self, prompt: RoutingInput) -> tuple[list[float], EncodedTurn]:
        """Return P of the classes of the prompt's turn, which is ASCII, and what it was encoded as."""
        features = np.empty(len(surface_features.FEATURE_NAMES), np.float32)
        turn = EncodedTurn(features, np.empty(self._encodes.dim, np.float32))
        classes: list[float] = KERNELS.read_turn(*self._native, prompt.turn, prompt.turn_chars, *turn)
        return classes, turn

    def read(self, prompt: RoutingInput, own: OwnOutcomes | None = None) -> tuple[Prediction, EncodedTurn]:
        """Return the prediction for the `prompt`, with the catalogue's `own` outcomes, if any, and what it was
        encoded as."""
        if self._native and self._encoder is None and prompt.turn.isascii():
            classes, turn = self._read_natively(prompt)
            mixed = _mixed(prompt, lambda reading: classes if reading is prompt else self._classes_of_turn(reading))
            return self._prediction(prompt, turn, mixed, own, classes if prompt.has_material else []), turn
        tokens = tokenise(prompt.turn)
        turn = encode_turn(self._encodes, prompt, tokens)
        return self.prediction(prompt, turn, own, tokens), turn

    def prediction(
        self,
        prompt: RoutingInput,
        turn: EncodedTurn,
        own: OwnOutcomes | None = None,
        tokens: Sequence[str] | None = None,
    ) -> Prediction:
        """Return the prediction for `prompt`, encoded as `turn`; with the catalogue's `own` outcomes, if any.
        `tokens` as in `classes`.

        Novelty is that of the tier with most labels of such prompts: 1 without any.
        """
        encoder = self._encoder
        if encoder is None:
            classes = self.classes(prompt, turn, tokens)
        else:
            classes = _mixed(prompt, lambda reading: encoder.probabilities(reading.turn))
        whole = [] if own is None else self.whole_classes(prompt, turn, tokens)
        return self._prediction(prompt, turn, classes, own, whole)

    def _prediction(
        self,
        prompt: RoutingInput,
        turn: EncodedTurn,
        classes: list[float],
        own: OwnOutcomes | None,
        whole: Sequence[float],
    ) -> Prediction:
        estimate = None if own is None else own.estimate(prompt, turn, classes, whole)
        if estimate is None and self.head is not None:
            p_ok = self.head.p(*self._inputs(turn, classes)).tolist()
            labels, good = self._measured_labels(classes)
        elif estimate is None:
            simple, medium, complex_, expert = classes
            p_ok = [simple * a + medium * b + complex_ * c + expert * d for a, b, c, d in self._by_tier]
            labels, good = self._measured_labels(classes)
        else:
            p_ok, labels, good = estimate.p_ok.tolist(), estimate.labels.tolist(), estimate.good.tolist()
        if isinstance(self.head, RefittedClasses):
            classes = self._refitted(self.head, turn, classes)
        # Whole parts of one: what `round` returns, which goes by way of a text.
        return Prediction(
            p_ok=[*[int(p * 1e6 + 0.5) / 1e6 for p in p_ok], 1.0],
            classes=[int(p * 1e4 + 0.5) / 1e4 for p in classes],
            labels=[int(count * 10.0 + 0.5) / 10.0 for count in labels],
            good_labels=[int(count * 10.0 + 0.5) / 10.0 for count in good],
            kind=self._kind,
            novelty=1.0 if estimate is None else round(HALF_NOVELTY / (HALF_NOVELTY + float(estimate.labels.max())), 4),
            classifier_version=self._version,
            from_others=own is not None and own.uses_others(prompt),
            material=list(prompt.material),
            follow_up=prompt.follow_up,
        )

    def _refitted(self, head: RefittedClasses, turn: EncodedTurn, classes: list[float]) -> list[float]:
        """Return P of the classes by the class model that was refitted to this catalogue."""
        probabilities: list[float] = head.classes(*self._inputs(turn, classes)).tolist()
        return probabilities

    def _inputs(self, turn: EncodedTurn, classes: list[float]) -> tuple[Float, Float, Float]:
        surface = standardised(turn.features, self._complexity.centre, self._complexity.scale)
        return np.array(classes, np.float32), turn.embedding, surface

    def _measured_labels(self, classes: list[float]) -> tuple[list[float], list[float]]:
        """Return by tier the number of answers to measured prompts of such classes, and of those as good."""
        if not self._is_measured:
            return [], []
        weights = np.array(classes, np.float32)
        return (weights @ self._prior.labels).tolist(), (weights @ self._prior.good).tolist()


def _mixed(prompt: RoutingInput, read: Callable[[RoutingInput], list[float]]) -> list[float]:
    """Return P of the classes of `prompt`: the mixture of what `read` says of each of its readings."""
    readings = prompt.as_classified
    if len(readings) == 1:
        return read(readings[0][0])
    weighted = [[weight * p for p in read(reading)] for reading, weight in readings]
    return [sum(parts) for parts in zip(*weighted, strict=True)]


@cache
def _shipped_model() -> OutcomeModel:
    return load_artefact(default_artefact())
