"""Predictions for a catalogue without outcomes of its own: by the prompt's class and what its tiers are like."""

from functools import cache

from classifier.artefact import default_artefact, load_artefact
from classifier.complexity.model import ComplexityModel, shipped_complexity
from classifier.complexity.prior import by_class, like_of
from classifier.decision import Prediction
from classifier.outcome_model import EncodedTurn, OutcomeModel, encode_turn
from classifier.routing_input import RoutingInput
from classifier.tokens import tokenise


class ColdStart:
    """The class prior beside one outcome model, whose encoding it uses where that is of the encoder it was trained
    with; else the shipped one encodes the prompt. Raises `ArtefactError` if either file is missing."""

    def __init__(self, model: OutcomeModel) -> None:
        self._complexity, self._like = shipped_complexity(), like_of(model.manifest.tiers)
        self._shares_encoder = model.manifest.encoder.get("sha256") == self._complexity.encoder

    def prediction(self, given: RoutingInput, turn: EncodedTurn, prediction: Prediction) -> Prediction:
        """`prediction` of the prompt `given`, encoded as `turn`, by class."""
        encoded = turn if self._shares_encoder else encode_turn(_shipped_model().encoder, given)
        classes = _probabilities(self._complexity, given, encoded)
        return by_class(prediction, classes, self._like)


def _probabilities(complexity: ComplexityModel, given: RoutingInput, turn: EncodedTurn) -> list[float]:
    return complexity.probabilities(given.turn, tokenise(given.turn), turn.features, turn.embedding)


@cache
def _shipped_model() -> OutcomeModel:
    return load_artefact(default_artefact())
