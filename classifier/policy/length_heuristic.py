"""The length-and-keyword heuristic that routes while the classifier is unavailable (RT-13); it needs no artefact."""

from classifier.decision import Prediction
from classifier.features.routing_input import RoutingInput

HARD_SIGNS = (
    "analy",
    "compare",
    "explain why",
    "step by step",
    "evaluate",
    "synthesi",
    "what would happen if",
    "prove",
    "derive",
    "```",
)
SHORT_CHARS, LONG_CHARS = 80, 4000


def heuristic_prediction(prompt: RoutingInput, tiers: int = 4) -> Prediction:
    """Return a prediction whose p_ok falls with the prompt's length and signs of reasoning; ordered, not calibrated.

    Novelty is 0: the classifier is unavailable, and that must not send all traffic to one tier.
    """
    length = (min(max(prompt.turn_chars, SHORT_CHARS), LONG_CHARS) - SHORT_CHARS) / (LONG_CHARS - SHORT_CHARS)
    lower = prompt.turn.lower()
    signs = sum(sign in lower for sign in HARD_SIGNS)
    wants_structure = prompt.has_tools or prompt.has_schema
    difficulty = min(1.0, 0.1 + 0.5 * length**0.5 + 0.2 * signs + 0.2 * wants_structure)
    steps = max(tiers - 1, 1)
    return Prediction(
        p_ok=[1.0 - difficulty * (steps - k) / steps for k in range(tiers)] if tiers > 1 else [1.0],
        kind="heuristic",
        novelty=0.0,
        classifier_version="heuristic",
        contributions=[("length", round(-0.5 * length**0.5, 4)), ("hard_signs", -0.2 * signs)],
    )
