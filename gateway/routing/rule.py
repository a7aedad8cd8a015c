"""The rule that turns probabilities into a choice for a quality target: what `decide` needs beside the prediction."""

from typing import Literal

import msgspec

# Without an artefact and its curve: the target that DESIGN's default stands for.
USUAL_QUALITY_TARGET = 0.95


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True):
    """`lambda_` and `tau` meet `quality_target`: the share of answers no worse than the strongest tier's."""

    rule: Literal["lambda", "tau"]
    quality_target: float
    lambda_: float
    tau: float


def heuristic_rule(quality_target: float | None) -> RoutingRule:
    """The rule for the length heuristic: it has no curve, only an order, so the target is made into a threshold.

    The cube spreads the heuristic's pessimistic probabilities over the tiers; it rises with the target, from 0 to 1.
    """
    target = USUAL_QUALITY_TARGET if quality_target is None else quality_target
    return RoutingRule(rule="tau", quality_target=target, lambda_=0.0, tau=target**3)
