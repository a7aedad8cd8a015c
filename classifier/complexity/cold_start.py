"""Predictions for a catalogue without outcomes of its own: by the prompt's class and what its tiers are like."""

from collections.abc import Sequence
from functools import cache

from classifier.artefact import default_artefact, load_artefact
from classifier.complexity.classes import Complexity
from classifier.complexity.model import shipped_complexity
from classifier.complexity.prior import adequacy, like_of
from classifier.decision import Prediction
from classifier.local.own import OwnOutcomes
from classifier.outcome_model import EncodedTurn, OutcomeModel, encode_turn
from classifier.routing_input import RoutingInput
from classifier.tokens import tokenise


class ColdStart:
    """The class prior beside one outcome model, whose encoding it uses where that is of the encoder it was trained
    with; else the shipped one encodes the prompt. Raises `ArtefactError` if either file is missing.

    `like`: what each tier of the catalogue is like, which need not be as many tiers as the model is for; by default the
    model's number, spread evenly.
    """

    def __init__(self, model: OutcomeModel, like: Sequence[Complexity] = ()) -> None:
        self._complexity, self._like = shipped_complexity(), tuple(like) or like_of(model.manifest.tiers)
        self._version = model.version
        self._shares_encoder = model.manifest.encoder.get("sha256") == self._complexity.encoder

    @property
    def like(self) -> tuple[Complexity, ...]:
        """What each tier is like."""
        return self._like

    def classes(self, given: RoutingInput, turn: EncodedTurn) -> list[float]:
        """P of the four classes of the prompt `given`, encoded as `turn`."""
        encoded = turn if self._shares_encoder else encode_turn(_shipped_model().encoder, given)
        tokens = tokenise(given.turn)
        return self._complexity.probabilities(given.turn, tokens, encoded.features, encoded.embedding)

    def prediction(
        self, given: RoutingInput, turn: EncodedTurn, novelty: float, own: OwnOutcomes | None = None
    ) -> Prediction:
        """The prediction for the prompt `given`, encoded as `turn`; with the catalogue's `own` outcomes, if any."""
        classes = self.classes(given, turn)
        known = None if own is None else own.estimate(given, turn, classes)
        p_ok = adequacy(classes, self._like) if known is None else [*known.p_ok.tolist(), 1.0]
        return Prediction(
            p_ok=[round(p, 6) for p in p_ok],
            classes=[round(p, 4) for p in classes],
            labels=[] if known is None else [round(n, 1) for n in known.labels.tolist()],
            good_labels=[] if known is None else [round(n, 1) for n in known.good.tolist()],
            kind="prior",
            novelty=novelty,
            classifier_version=self._version,
        )


@cache
def _shipped_model() -> OutcomeModel:
    return load_artefact(default_artefact())
