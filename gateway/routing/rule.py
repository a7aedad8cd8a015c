"""The rule that turns probabilities into a choice: the threshold that a quality target stands for."""

import msgspec

from classifier.prediction.class_predictor import threshold_of

# Without a classifier: the share of answers no worse than the strongest tier's that is usually wanted.
USUAL_QUALITY_TARGET = 0.95


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest allowed tier whose P(good enough) reaches `tau` answers, which meets `quality_target`."""

    quality_target: float
    tau: float


def class_rule(quality_target: float | None) -> RoutingRule:
    """The rule of every version of the classifier; None is the default target. Raises `PolicyInputsError`."""
    tau = threshold_of(quality_target)
    return RoutingRule(quality_target=tau, tau=tau)


def heuristic_rule(quality_target: float | None) -> RoutingRule:
    """The rule for the length heuristic: its probabilities have only an order, so the target is made into a threshold.

    The cube spreads the heuristic's pessimistic probabilities over the tiers; it rises with the target, from 0 to 1.
    """
    target = USUAL_QUALITY_TARGET if quality_target is None else quality_target
    return RoutingRule(quality_target=target, tau=target**3)
