"""A classifier with scripted predictions."""

from typing import Literal

from classifier.decision import Prediction
from classifier.features.routing_input import RoutingInput
from classifier.policy.experiment_split import Split


class ScriptedClassifier:
    """Predicts `p_ok` and `novelty` for every prompt; raises `error` instead if it is set."""

    on_trial = False

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restore the first script: every tier is good enough, so that the cheapest wins."""
        self.p_ok: tuple[float, ...] = (0.999, 0.999, 0.999, 1.0)
        self.novelty = 0.1
        self.kind: Literal["measured", "prior"] = "measured"
        self.version = "scripted"
        self.error: Exception | None = None
        self.experiment: Split | None = None
        self.seen: list[RoutingInput] = []

    def split(self) -> Split | None:
        return self.experiment

    def model_for(self, request_id: str, arm: object = None) -> "ScriptedClassifier":
        return self

    def predict(self, given: RoutingInput) -> Prediction:
        self.seen.append(given)
        if self.error is not None:
            raise self.error
        return Prediction(p_ok=list(self.p_ok), kind=self.kind, novelty=self.novelty, classifier_version=self.version)
