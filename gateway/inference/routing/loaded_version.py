"""One loaded version of the classifier with its rules: a decision is made with one of these, and never with two."""

import asyncio
from typing import Literal

import msgspec

from classifier.class_predictor import ClassPredictor, Float
from classifier.decision import Prediction
from classifier.encoders.static_encoder import SlowEncoder
from classifier.features.routing_input import RoutingInput
from classifier.features.words import tokenise
from classifier.local.cells import ClassTable
from classifier.local.own import OwnOutcomes
from classifier.model.answer_length import AnswerLength
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import OutcomeModel, encode_turn
from gateway.inference.routing.model import Reading


class LoadedVersion:
    """The version that serves, or a canary (`on_trial`). Immutable, except that `own` labels of the catalogue and
    `lengths` of answers are replaced whole.

    It decides by the prompt's complexity class: by a table that it learned of the catalogue's tiers or, without one, by
    the catalogue's `prior`, by default of as many tiers as the version is for, spread evenly; and by the own labels.
    """

    def __init__(self, model: OutcomeModel, *, on_trial: bool = False, prior: ClassTable | None = None) -> None:
        self.model, self.on_trial, self._prior = model, on_trial, prior
        self._predictor = ClassPredictor(model, prior)
        self._slow_encoder = model.encoder if isinstance(model.encoder, SlowEncoder) else None
        self.own: OwnOutcomes | None = None
        self.lengths: AnswerLength | None = None

    @property
    def version(self) -> str:
        """The artefact's name."""
        return self.model.version

    @property
    def kind(self) -> Literal["measured", "prior"]:
        """Whether its table was learned of the catalogue that it serves."""
        return self._predictor.kind

    @property
    def table(self) -> Float:
        """[4, tiers - 1]: what it knows of the tiers by class without own labels."""
        return self._predictor.table

    @property
    def head(self) -> LearnedHead | None:
        """The head over all keys that replaces the table, if it learned one."""
        return self._predictor.head

    @property
    def slow(self) -> bool:
        """Whether its encoder takes milliseconds."""
        return self._slow_encoder is not None

    def predict(self, routing_input: RoutingInput) -> Prediction:
        """The prediction of `read`."""
        return self.read(routing_input).prediction

    def read(self, routing_input: RoutingInput) -> Reading:
        """P(good enough) of every tier, and the tokens of its answer where these can be predicted; with the prompt's
        embedding."""
        lengths, words = self.lengths, tokenise(routing_input.turn)
        turn = encode_turn(self.model.encoder, routing_input, words)
        prediction = self._predictor.prediction(routing_input, turn, self.own, words)
        if lengths is not None:
            tokens = lengths.by_tier(turn.features, turn.embedding)
            prediction = msgspec.structs.replace(prediction, predicted_tokens=tokens)
        return Reading(prediction, turn.embedding)

    def use_lengths(self, lengths: AnswerLength | None) -> None:
        """Predict answers' lengths by `lengths`, unless they were fitted on the embeddings of another encoder."""
        self.lengths = lengths if lengths is not None and lengths.encoder == self.model.encoder_hash else None

    async def encode_ahead(self, routing_input: RoutingInput) -> None:
        """Have the prompt encoded while other requests are served."""
        if self._slow_encoder is not None:
            await asyncio.wrap_future(self._slow_encoder.submit(routing_input.turn))

    def for_catalogue(self, fingerprint: str, prior: ClassTable | None) -> "LoadedVersion":
        """The same version for the catalogue of this fingerprint and `prior`."""
        model = self.model.for_catalogue(fingerprint)
        version = LoadedVersion(model, on_trial=self.on_trial, prior=prior)
        version.own, version.lengths = self.own, self.lengths
        return version
