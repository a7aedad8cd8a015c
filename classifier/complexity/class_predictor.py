"""Predictions by the prompt's complexity class: from what the tiers are like, or what was learned of them."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from classifier.artefact import default_artefact, load_artefact
from classifier.complexity.classes import Complexity
from classifier.complexity.model import shipped_complexity
from classifier.complexity.prior import DEFAULT_TARGET, adequacies, like_of
from classifier.decision import Prediction
from classifier.errors import PolicyInputsError
from classifier.local.estimator import N0_KEY
from classifier.local.own import OwnOutcomes
from classifier.outcome_model import EncodedTurn, OutcomeModel, encode_turn
from classifier.routing_input import RoutingInput
from classifier.tokens import tokenise

Float = npt.NDArray[np.float32]


def threshold_of(quality_target: float | None) -> float:
    """How likely the chosen tier's answer must be good enough, in [0, 1]: the quality target itself; None is the
    default one. Raises `PolicyInputsError` for a target outside [0, 1]."""
    if quality_target is None:
        return DEFAULT_TARGET
    if not 0.0 <= quality_target <= 1.0:
        raise PolicyInputsError(f"quality target is {quality_target}; it must lie in [0, 1].")
    return quality_target


class ClassPredictor:
    """Predictions by complexity class beside one outcome model, whose encoding it uses where that is of the encoder
    that the classes were trained with; else the shipped one encodes the prompt. Raises `ArtefactError` if either file
    is missing.

    `like`: what each tier of the catalogue is like, which need not be as many tiers as the model is for; by default the
    model's number, spread evenly. A table that the model learned of this catalogue takes the place of the prior if it
    is of as many tiers (`kind` is then "measured", else "prior").
    """

    def __init__(self, model: OutcomeModel, like: Sequence[Complexity] = ()) -> None:
        self._complexity = shipped_complexity()
        kinds = tuple(like) or like_of(model.manifest.tiers)
        learned = model.adequacy if model.kind == "measured" else None
        measured = learned is not None and learned.shape[1] == len(kinds) - 1
        self._kind: Literal["measured", "prior"] = "measured" if measured else "prior"
        self._table = learned if learned is not None and measured else adequacies(kinds)[:, :-1]
        # By tier, so that a decision takes four products for each.
        self._by_tier = [tuple(column) for column in self._table.T.tolist()]
        self._version = model.version
        self._shares_encoder = model.manifest.encoder.get("sha256") == self._complexity.encoder

    @property
    def kind(self) -> Literal["measured", "prior"]:
        """Whether the table was learned of this catalogue."""
        return self._kind

    @property
    def tiers(self) -> int:
        """How many tiers the predictions are of."""
        return len(self._by_tier) + 1

    @property
    def table(self) -> Float:
        """[4, tiers - 1]: P(as good as the strongest) by class, as learned of this catalogue or else the prior."""
        return self._table

    def classes(self, given: RoutingInput, turn: EncodedTurn) -> list[float]:
        """P of the four classes of the prompt `given`, encoded as `turn`."""
        encoded = turn if self._shares_encoder else encode_turn(_shipped_model().encoder, given)
        tokens = tokenise(given.turn)
        return self._complexity.probabilities(given.turn, tokens, encoded.features, encoded.embedding)

    def prediction(self, given: RoutingInput, turn: EncodedTurn, own: OwnOutcomes | None = None) -> Prediction:
        """The prediction for the prompt `given`, encoded as `turn`; with the catalogue's `own` outcomes, if any.

        Novelty is the share that what is known above the key's labels has in them: 1 without labels of such prompts.
        """
        classes = self.classes(given, turn)
        known = None if own is None else own.estimate(given, turn, classes)
        if known is None:
            simple, medium, complex_, expert = classes
            p_ok = [simple * a + medium * b + complex_ * c + expert * d for a, b, c, d in self._by_tier]
        else:
            p_ok = known.p_ok.tolist()
        return Prediction(
            p_ok=[*(round(p, 6) for p in p_ok), 1.0],
            classes=[round(p, 4) for p in classes],
            labels=[] if known is None else [round(n, 1) for n in known.labels.tolist()],
            good_labels=[] if known is None else [round(n, 1) for n in known.good.tolist()],
            kind=self._kind,
            novelty=1.0 if known is None else round(N0_KEY / (N0_KEY + float(known.labels.max())), 4),
            classifier_version=self._version,
        )


@cache
def _shipped_model() -> OutcomeModel:
    return load_artefact(default_artefact())
