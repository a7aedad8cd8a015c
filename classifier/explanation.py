"""Everything a version has to say about one prompt, for people: what it looked at, what moved it, what it would do."""

import msgspec

from classifier.appeals import without_appeals
from classifier.complexity.cold_start import ColdStart, decides_by_class
from classifier.complexity.prior import DEFAULT_TARGET
from classifier.curve import quality_to_lambda, quality_to_tau
from classifier.decision import PolicyInputs
from classifier.fallback import fallback_of
from classifier.features import FEATURE_NAMES
from classifier.outcome_model import OutcomeModel
from classifier.policy import decide
from classifier.prompt_file import PromptRow
from classifier.routing_input import routing_input_of_text


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt explained. `tier` and `reason`: the policy's at the artefact's own target and reference prices.

    `classes`: P of the four complexity classes, where the tier follows from them.
    `contributions`: signed effects on the logit of tier 1's p_ok, largest first; `features`: the surface features that
    are not 0. `looked_at` of `characters` are seen by the classifier; `appeals` are words to the router, passed over.
    """

    id: str | int
    version: str
    kind: str
    tier: int
    reason: str
    quality_target: float
    classes: list[float]
    p_ok: list[float]
    p_correct: list[float]
    predicted_tokens: list[float | None]
    novelty: float
    novelty_threshold: float
    novel: bool
    contributions: list[tuple[str, float]]
    features: dict[str, float]
    characters: int
    looked_at: int
    appeals: list[str]


def explained(model: OutcomeModel, row: PromptRow) -> Explanation:
    """The explanation of one prompt by `model`."""
    given = routing_input_of_text(row.prompt)
    turn = model.encode(given)
    nearby = model.memory.look_up_one(turn.embedding)
    fallback, curves, cold = fallback_of(model.manifest), model.manifest.curves, decides_by_class(model)
    target = DEFAULT_TARGET if cold else curves.default_quality_target
    prediction = ColdStart(model).prediction(given, turn) if cold else model.prediction(turn, nearby)
    decision = decide(
        PolicyInputs(
            prediction=prediction,
            costs=list(curves.prices),
            rule="tau" if cold else curves.default_rule,
            quality_target=target,
            lambda_=quality_to_lambda(model, target),
            tau=target if cold else quality_to_tau(model, target),
            novelty_threshold=fallback.threshold if given.turn.strip() and not cold else None,
            safe_tier=fallback.tier,
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
        p_correct=prediction.p_correct,
        predicted_tokens=prediction.predicted_tokens,
        novelty=prediction.novelty,
        novelty_threshold=fallback.threshold,
        novel=not cold and prediction.novelty >= fallback.threshold,
        contributions=prediction.contributions,
        features={name: round(value, 4) for name, value in zip(FEATURE_NAMES, features, strict=True) if value},
        characters=len(row.prompt),
        looked_at=len(given.turn),
        appeals=_passed_over(row.prompt),
    )


def _passed_over(text: str) -> list[str]:
    """The lines of `text` that lose words, for showing; what is lost is a sentence or a setting."""
    if without_appeals(text) == text:
        return []
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if without_appeals(line) != line]
