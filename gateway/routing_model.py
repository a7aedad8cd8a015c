"""What routing asks of a classifier: a version for each request, and from it everything one decision needs."""

from typing import NamedTuple, Protocol, runtime_checkable

from classifier.decision import Prediction
from classifier.manifest import NoveltyFallback
from classifier.routing_input import RoutingInput
from classifier.split import Split
from gateway.routing_rule import RoutingRule


class RoutingModel(Protocol):
    """One version of the outcome model. `on_trial`: it is not the version in force but a canary beside it."""

    on_trial: bool

    def predict(self, given: RoutingInput) -> Prediction:
        """P(no worse) of every tier."""

    def rule_for(self, quality_target: float | None) -> RoutingRule:
        """The rule that meets a quality target; None is the artefact's own."""

    def fallback(self) -> NoveltyFallback:
        """From which novelty on a prompt gets a safe tier, and which."""


@runtime_checkable
class EncodesAhead(Protocol):
    """A version whose encoder may take milliseconds (`slow`)."""

    @property
    def slow(self) -> bool:
        """Whether `predict` would hold up others."""

    async def encode_ahead(self, given: RoutingInput) -> None:
        """Have the prompt encoded, so that `predict` need not wait."""


class Classifier(Protocol):
    """The outcome model in force, and perhaps another on trial beside it, or an experiment with two arms."""

    def split(self) -> Split | None:
        """The experiment that is under way."""

    def model_for(self, request_id: str) -> RoutingModel:
        """The version that decides about this request; while nothing is promoted, always the same one."""


class Verdict(NamedTuple):
    """What one version of the classifier, or the heuristic, says; `fallback` None: novelty does not matter."""

    prediction: Prediction
    rule: RoutingRule
    fallback: NoveltyFallback | None = None
    on_trial: bool = False
