"""What routing asks of a classifier: a version for each request, and from it everything one decision needs."""

from typing import Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.class_predictor import threshold_of
from classifier.decision import Decision, PolicyInputs, Prediction
from classifier.errors import ArtefactError
from classifier.features.routing_input import RoutingInput
from classifier.policy.decide import decide
from classifier.policy.experiment_split import ArmName, Split

# Without a classifier: the share of answers no worse than the strongest tier's that is usually wanted.
USUAL_QUALITY_TARGET = 0.95


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True):
    """By which a tier is chosen (`PolicyInputs`)."""

    quality_target: float
    tau: float
    objective: Literal["utility", "target"] = "utility"

    @classmethod
    def of_classes(cls, quality_target: float | None) -> "RoutingRule":
        """The rule of every version of the classifier; None is the default target. Raises `PolicyInputsError`."""
        tau = threshold_of(quality_target)
        return cls(quality_target=tau, tau=tau)

    @classmethod
    def of_heuristic(cls, quality_target: float | None) -> "RoutingRule":
        """The rule for the length heuristic: its probabilities are only an order, so the target becomes a threshold.

        The cube spreads the heuristic's pessimistic probabilities over the tiers; it rises from 0 to 1 with the target.
        """
        target = USUAL_QUALITY_TARGET if quality_target is None else quality_target
        return cls(quality_target=target, tau=target**3, objective="target")


def choice_at(inputs: PolicyInputs, rule: RoutingRule) -> int:
    """Return the tier that `decide` chooses by another rule; in observe mode, routing's own choice."""
    return decide(msgspec.structs.replace(ruled_by(inputs, rule), observe_tier=None)).tier


def ruled_by(inputs: PolicyInputs, rule: RoutingRule) -> PolicyInputs:
    """Return `inputs` with another rule."""
    return msgspec.structs.replace(inputs, quality_target=rule.quality_target, tau=rule.tau, objective=rule.objective)


class Reading(msgspec.Struct, frozen=True):
    """What a version makes of a prompt: its prediction, and the unit vector [d] that it encoded the prompt as; all zero
    for a prompt without a known word, None where a version has no such vectors."""

    prediction: Prediction
    embedding: npt.NDArray[np.float32] | None = None


class RoutingModel(Protocol):
    """One version of the outcome model. `on_trial`: it is a canary, not the current version."""

    on_trial: bool

    def read(self, routing_input: RoutingInput) -> Reading:
        """P(no worse) of every tier, and the prompt as a vector."""


@runtime_checkable
class EncodesAhead(Protocol):
    """A version whose encoder may take milliseconds (`slow`)."""

    @property
    def slow(self) -> bool:
        """Whether `read` would hold up others."""

    async def encode_ahead(self, routing_input: RoutingInput) -> None:
        """Have the prompt encoded, so that `read` need not wait."""


class Classifier(Protocol):
    """The current outcome model, and perhaps a canary or an experiment with two arms."""

    def split(self) -> Split | None:
        """The experiment that is under way."""

    def model_for(self, request_id: str, arm: ArmName | None = None) -> RoutingModel:
        """The version that decides about this request: that of its `arm`, if it is in one. While nothing is promoted,
        always the same one."""


def rule_of(classifier: Classifier, request_id: str, quality_target: float | None) -> RoutingRule:
    """The rule by which a request is decided: that of all versions, or of the length heuristic where none serves."""
    try:
        classifier.model_for(request_id)
    except ArtefactError:
        return RoutingRule.of_heuristic(quality_target)
    return RoutingRule.of_classes(quality_target)


class VersionPrediction(msgspec.Struct, frozen=True):
    """What one version of the classifier, or the heuristic, says. `embedding` as in `Reading`."""

    prediction: Prediction
    rule: RoutingRule
    on_trial: bool = False
    embedding: npt.NDArray[np.float32] | None = None


class Routed(msgspec.Struct, frozen=True):
    """A decision, and the vector of the prompt that the classifier saw; None where it had no part in the decision.
    `app`: hash of the system prompt."""

    decision: Decision
    embedding: npt.NDArray[np.float32] | None = None
    app: str = ""
