"""What routing knew of each tier when it decided, and in words why it chose another one."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from classifier.decision import Decision
from classifier.policy.decide import barred_tiers, held_back
from tiers.catalog.catalog import name_of_tier

_NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})
# The policy knows tiers by their numbers.
_NUMBERED = re.compile(r"\btier (\d+)\b")


class TierChance(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knew of a tier: P(good enough), predicted cost and score."""

    tier: int
    p_ok: float
    cost_usd: float
    predicted_tokens: float | None
    score: float | None
    ruled_out: str | None
    """Why another tier was chosen, in words; None for the chosen one."""


def chances_of(decision: Decision, names: Mapping[int, str] = _NO_NAMES) -> list[TierChance]:
    """Return what routing knew, by tier. `names`: of the tiers, for the words."""
    inputs = decision.inputs
    prediction, barred = inputs.prediction, barred_tiers(inputs)
    reasons = barred | held_back(inputs, [k for k in range(1, len(inputs.costs) + 1) if k not in barred])
    return [
        TierChance(
            tier=number,
            p_ok=prediction.p_ok[number - 1],
            cost_usd=cost,
            predicted_tokens=prediction.predicted_tokens[number - 1] if prediction.predicted_tokens else None,
            score=decision.scores[number - 1],
            ruled_out=None
            if number == decision.tier
            else _named(reasons.get(number) or _why_not(decision, number), names),
        )
        for number, cost in enumerate(inputs.costs, start=1)
    ]


def _named(words: str, names: Mapping[int, str]) -> str:
    return _NUMBERED.sub(lambda match: name_of_tier(int(match[1]), names), words)


def _why_not(decision: Decision, tier: int) -> str:
    """Why a tier that may answer was not chosen."""
    inputs, chosen = decision.inputs, decision.tier
    by_rule = decision.tier if decision.would_be is None else decision.would_be
    if decision.would_be is not None and by_rule != chosen:
        if tier == by_rule:
            return f"in observe mode tier {chosen} answers"
        return f"routing would have chosen tier {by_rule}"
    if inputs.rules is not None and inputs.rules.tier == chosen:
        return f"a rule sends the request to tier {chosen}"
    if inputs.edge is not None and inputs.edge.tier == chosen:
        return f"short prompts go to tier {chosen} without the classifier"
    if inputs.arm_tier == chosen:
        return f"arm {inputs.arm} of the experiment uses tier {chosen}"
    p_ok = inputs.prediction.p_ok[tier - 1]
    if inputs.objective == "utility":
        theirs, ours = decision.scores[tier - 1], decision.scores[chosen - 1]
        if theirs is None or ours is None:
            return ""
        return f"its utility is {theirs:.3f}, and tier {chosen} has {ours:.3f}"
    if p_ok < inputs.tau:
        return f"P(good enough) {p_ok:.3f} is below {inputs.tau:.3f}"
    return f"it is good enough too, but no cheaper than tier {chosen}"
