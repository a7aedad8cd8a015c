"""An explanation of one prompt for people: its inputs, the effects of features, and the choice."""

import msgspec

from classifier.decision import PolicyInputs
from classifier.features.router_instructions import without_router_instructions
from classifier.features.routing_input import routing_input_of_text
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.decide import decide
from classifier.policy.utility import reference_prices
from classifier.prediction.class_predictor import ClassPredictor, threshold_of
from classifier.prediction.prompt_file import PromptRow


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt explained. `tier` and `reason`: the policy's at the default target and reference prices.

    `classes`: P of the four complexity classes, from which `p_ok` by tier follows. `features`: the surface features
    that are not 0. `looked_at` of `characters` are seen by the classifier; `router_instructions`: sentences addressed
    to the router, which it ignores.
    """

    id: str | int
    version: str
    kind: str
    tier: int
    reason: str
    quality_target: float
    classes: list[float]
    p_ok: list[float]
    novelty: float
    features: dict[str, float]
    characters: int
    looked_at: int
    router_instructions: list[str] = msgspec.field(name="appeals")


def explained(model: OutcomeModel, row: PromptRow) -> Explanation:
    """Return the explanation of one prompt by `model`."""
    given, predictor = routing_input_of_text(row.prompt), ClassPredictor(model)
    turn = model.encode(given)
    prediction, target = predictor.prediction(given, turn), threshold_of(None)
    decision = decide(
        PolicyInputs(
            prediction=prediction,
            costs=reference_prices(predictor.tiers).tolist(),
            quality_target=target,
            tau=target,
            objective="utility",
        )
    )
    features = turn.features.tolist()[: len(FEATURE_NAMES)]
    return Explanation(
        id=row.id,
        version=model.version,
        kind=prediction.kind,
        tier=decision.tier,
        reason=decision.reason,
        quality_target=target,
        classes=prediction.classes,
        p_ok=prediction.p_ok,
        novelty=prediction.novelty,
        features={name: round(value, 4) for name, value in zip(FEATURE_NAMES, features, strict=True) if value},
        characters=len(row.prompt),
        looked_at=len(given.turn),
        router_instructions=_passed_over(row.prompt),
    )


def _passed_over(text: str) -> list[str]:
    """Return the lines of `text` from which instructions to the router were removed."""
    if without_router_instructions(text) == text:
        return []
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if without_router_instructions(line) != line]
