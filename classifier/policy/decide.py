"""The routing policy: pure functions from calibrated probabilities, predicted costs and constraints to a Decision.

The allowed tier whose answer is worth most answers (`classifier.policy.utility`, docs/routing.md, SPEC RT-05); records
of earlier releases and the length heuristic have another rule, the cheapest with `p_ok >= tau`. Costs never fall with
the tier; ties go to the lower number. Constraints exclude tiers; holds then hold back some of the rest: a conversation
stays on its tier, or a queue is long. Neither depends on the quality target, so that a higher one chooses among the
same tiers and never a lower one; holds depend on the request's circumstances only, and always leave a tier. The fast
path's tier, if allowed, is chosen before the rule, a constant tier before both, the cheapest tier where that is asked
for before these, and the tier of an operator's rule before all of them.
"""

import math
from collections.abc import Sequence

import msgspec

from classifier.complexity.classes import Complexity
from classifier.decision import (
    Constraints,
    Decision,
    Exclusion,
    Holds,
    Objective,
    PolicyInputs,
    Prediction,
    PricedAgreement,
    SessionRule,
)
from classifier.errors import NoTierAllowedError, PolicyInputsError
from classifier.features.routing_input import RoutingInput
from classifier.policy.utility import worths

# Of the heuristic.
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


def held_back(inputs: Holds, allowed: Sequence[int]) -> dict[int, str]:
    """Return tier → why it is held back, of the `allowed` tiers (ascending, not empty); never all of them.

    Nothing is held back for a pinned request. A tool loop keeps its tier. A conversation moves to a lower tier only if
    that saves more than prefilling the conversation again costs (docs/routing.md). A tier with a longer queue than
    `most_wait_seconds` gives way to higher ones, if one of these has a shorter queue (SPEC RT-12). An agent's session
    has rules of its own (docs/agents.md).
    """
    if inputs.pinned_tier is not None:
        return {}
    if inputs.session is not None:
        return _held_by_session(inputs, inputs.session, allowed)
    previous = inputs.previous_tier if inputs.previous_tier in allowed else None
    if previous is not None and inputs.in_tool_loop:
        return {k: f"the tool loop stays on tier {previous}" for k in allowed if k != previous}
    held = _queued(inputs, allowed)
    if previous is None:
        return held
    reread = {k: reason for k in allowed if k < previous and (reason := _dearer_by_rereading(inputs, previous, k))}
    return reread | held


def _held_by_session(inputs: Holds, step: SessionRule, allowed: Sequence[int]) -> dict[int, str]:
    """Return the tiers that a session's rule holds back. A rule whose tier may not answer never sends it lower."""
    floor = min(step.floor or 1, allowed[-1])
    held = {k: f"the parent of this agent is on tier {step.floor}" for k in allowed if k < floor}
    open_tiers = [k for k in allowed if k not in held]
    if step.rule == "free":
        return held | _queued(inputs, open_tiers)
    previous = step.previous
    if step.rule == "stay" and previous in open_tiers:
        return held | {k: step.because for k in open_tiers if k != previous}
    if step.rule == "rest" and previous in open_tiers:
        return held | _queued(inputs, open_tiers)
    # Up, or what holds the session on its tier may not answer.
    least = previous + 1 if step.rule == "up" else previous
    least = min(least, open_tiers[-1])
    return held | {k: step.because for k in open_tiers if k < least}


def _queued(inputs: Holds, allowed: Sequence[int]) -> dict[int, str]:
    """Return the tiers whose queue is too long while that of a higher one is not. The highest tier with a short queue
    and those above it stay, so that the rule of conversations leaves one of these or `previous` itself."""
    most, waits = inputs.most_wait_seconds, inputs.predicted_waits
    if most is None:
        return {}
    short = max((k for k in allowed if waits[k - 1] <= most), default=0)
    return {
        k: f"its queue takes {waits[k - 1]:.1f} s, and tier {short} has a shorter one"
        for k in allowed
        if k < short and waits[k - 1] > most
    }


def _dearer_by_rereading(inputs: Holds, previous: int, tier: int) -> str | None:
    """Return why the conversation stays above `tier`, or None: the previous tier has its prefix cached."""
    reuse = inputs.reuse_usd or [0.0] * len(inputs.costs)
    stay = inputs.costs[previous - 1] - reuse[previous - 1]
    move = inputs.costs[tier - 1] - reuse[tier - 1]
    if move < stay:
        return None
    return (
        f"the conversation is on tier {previous}: to continue there costs ${max(stay, 0.0):.6f}, "
        f"and to read it again here costs ${move:.6f}"
    )


_NAMES = (
    "pinned_tier", "min_tier", "key_min_tier", "previous_tier", "arm_tier", "observe_tier", "constant", "rules",
)  # fmt: skip
_NONE_NAMED = (None,) * len(_NAMES)
_CLASS_NAMES = [complexity.name for complexity in Complexity]


def decide(inputs: PolicyInputs) -> Decision:
    """Return the decision for `inputs`; the same inputs always give an equal decision (replay).

    Raises `PolicyInputsError` for invalid inputs and `NoTierAllowedError` if every tier is excluded.
    """
    _check(inputs)
    barred = barred_tiers(inputs)
    tiers = range(1, len(inputs.costs) + 1)
    allowed = [k for k in tiers if k not in barred]
    if not allowed:
        raise NoTierAllowedError([Exclusion(tier=k, reason=barred[k]) for k in sorted(barred)])
    held = held_back(inputs, allowed)
    open_tiers = [k for k in allowed if k not in held] if held else allowed
    tier, scores = (_worth_most if inputs.objective == "utility" else _cheapest_reaching)(inputs, open_tiers)
    if inputs.arm_tier is not None and inputs.arm_tier in allowed:
        tier = inputs.arm_tier
    if inputs.edge is not None and inputs.edge.tier in open_tiers:
        tier = inputs.edge.tier
    if inputs.constant is not None and inputs.is_constant:
        tier = _at_least(inputs.constant.tier, open_tiers)
    if inputs.cheapest is not None:
        tier = open_tiers[0]
    if inputs.rules is not None and inputs.rules.tier in allowed and inputs.pinned_tier is None:
        tier = inputs.rules.tier
    reason = _reason(inputs, tier, barred, held)
    if inputs.rules is not None and inputs.rules.names:
        reason += f"; matching rules: {', '.join(inputs.rules.names)}"
    if inputs.private is not None:
        reason = f"private ({inputs.private}): {reason}"
    if inputs.observe_tier is None:
        return Decision(tier=tier, reason=_after(inputs, reason), scores=scores, inputs=inputs)
    answers = _at_least(inputs.observe_tier, allowed)
    watched = f"observe mode: tier {answers} answers, and routing would choose tier {tier}: {reason}"
    return Decision(tier=answers, would_be=tier, reason=_after(inputs, watched), scores=scores, inputs=inputs)


def fallen_over(decision: Decision, said: str) -> Decision:
    """Return the same decision with what failed after it and what took over."""
    return decide(msgspec.structs.replace(decision.inputs, fell_over=said))


def beside_agreement(decision: Decision, priced: PricedAgreement) -> Decision:
    """Return the same decision with what asking several tiers at once was worth."""
    inputs = msgspec.structs.replace(decision.inputs, agreement=priced)
    if decision.inputs.agreement is not None or inputs.fell_over is not None or decision.would_be is not None:
        return decide(inputs)
    return msgspec.structs.replace(decision, inputs=inputs, reason=_after(inputs, decision.reason))


def _after(inputs: PolicyInputs, reason: str) -> str:
    """Return `reason`, of the choice between single tiers, with what came after it."""
    if inputs.agreement is not None:
        reason = f"{inputs.agreement}; {reason}" if inputs.agreement.taken else f"{reason}; {inputs.agreement}"
    return reason if inputs.fell_over is None else f"{reason}; {inputs.fell_over}"


def _worth_most(inputs: Objective, open_tiers: Sequence[int]) -> tuple[int, list[float | None]]:
    """Return the tier of the highest utility and the scores. Where the rest of an agent's session decides, its mean
    step counts, and on equal utilities the session's own tier."""
    step, costs = inputs.session, inputs.costs
    previous = 0
    if step is not None and step.rest_usd:
        previous, steps = step.previous, max(step.rest_steps, 1.0)
        costs = [usd / steps for usd in step.rest_usd]
    worth = worths(inputs.prediction, costs, inputs.reference, inputs.exchange)
    if not previous and len(open_tiers) == len(costs):
        return worth.index(max(worth)) + 1, [*worth]
    scores: list[float | None] = [None] * len(costs)
    tier, best = open_tiers[0], -math.inf
    for k in open_tiers:
        net = scores[k - 1] = worth[k - 1]
        if net > best or (net == best and k == previous):
            tier, best = k, net
    return tier, scores


def _cheapest_reaching(inputs: Objective, open_tiers: Sequence[int]) -> tuple[int, list[float | None]]:
    """Return the cheapest tier that reaches tau, else the strongest, and the scores."""
    costs, p_ok = inputs.costs, inputs.prediction.p_ok
    scores: list[float | None] = [None] * len(costs)
    tier = open_tiers[-1]
    for k in reversed(open_tiers):
        share = costs[k - 1] / costs[-1]
        if p_ok[k - 1] >= inputs.tau:
            tier, scores[k - 1] = k, share
        else:
            scores[k - 1] = 2.0 - share
    if inputs.session is not None and inputs.session.rest_usd:
        tier = _least_rest(inputs, inputs.session, open_tiers, tier)
    return tier, scores


def _least_rest(inputs: Objective, step: SessionRule, open_tiers: Sequence[int], cheapest: int) -> int:
    """Return the tier on which the rest of a session costs least, of those that are good enough; the session's own and
    then the lower one on equal costs. `cheapest`: the least of them, or the strongest where none is."""
    enough = [k for k in open_tiers if k >= cheapest and inputs.prediction.p_ok[k - 1] >= inputs.tau]
    return min(enough or [cheapest], key=lambda k: (step.rest_usd[k - 1], k != step.previous, k))


def may_answer(inputs: Holds, tier: int) -> bool:
    """Return whether `tier` is neither excluded nor held back."""
    barred = barred_tiers(inputs)
    allowed = [k for k in range(1, len(inputs.costs) + 1) if k not in barred]
    return tier in allowed and tier not in held_back(inputs, allowed)


def routed_choice(inputs: PolicyInputs) -> int:
    """Return the tier that routing chooses if neither observe mode nor a constant replaces it. Raises as `decide`."""
    return decide(msgspec.structs.replace(inputs, observe_tier=None, constant=None)).tier


def constant_choices(inputs: Holds) -> list[int]:
    """Return which tier answers for each one as the constant: itself, or the next one. Raises `NoTierAllowedError`."""
    barred = barred_tiers(inputs)
    tiers = range(1, len(inputs.costs) + 1)
    allowed = [k for k in tiers if k not in barred]
    if not allowed:
        raise NoTierAllowedError([Exclusion(tier=k, reason=barred[k]) for k in sorted(barred)])
    held = held_back(inputs, allowed)
    open_tiers = [k for k in allowed if k not in held]
    return [_at_least(k, open_tiers) for k in tiers]


def _at_least(tier: int, among: Sequence[int]) -> int:
    """Return `tier`, else the next higher one, else the highest of `among` (ascending)."""
    return min((k for k in among if k >= tier), default=among[-1])


def barred_tiers(inputs: Constraints) -> dict[int, str]:
    """Return tier → why it may not answer: the caller's exclusions, then pin, minimum and maximum cost."""
    barred = {e.tier: e.reason for e in inputs.exclusions}
    pinned, most = inputs.pinned_tier, inputs.max_cost_usd
    least, least_of_key = inputs.min_tier or 0, inputs.key_min_tier or 0
    if pinned is None and most is None and not least and not least_of_key:
        return barred
    for k, cost in enumerate(inputs.costs, start=1):
        if k in barred:
            continue
        if pinned is not None and k != pinned:
            barred[k] = f"the request is pinned to tier {pinned}"
        elif k < least:
            barred[k] = f"the request asks for at least tier {least}"
        elif k < least_of_key:
            barred[k] = f"the key asks for at least tier {least_of_key}"
        elif most is not None and cost > most:
            barred[k] = f"the predicted cost of ${cost:.6f} is above the maximum ${most:.6f}"
    return barred


def _reason(inputs: PolicyInputs, tier: int, barred: dict[int, str], held: dict[int, str]) -> str:
    if inputs.pinned_tier == tier:
        by = "" if inputs.rules is None or inputs.rules.target is None else f" (target {inputs.rules.target})"
        return f"pinned to tier {tier}{by}"
    if inputs.rules is not None and inputs.rules.tier == tier:
        by = "" if inputs.rules.target is None else f" (target {inputs.rules.target})"
        return f"a rule sends the request to tier {tier}{by}{_ruled_out(barred, held)}"
    if inputs.cheapest is not None:
        return f"{inputs.cheapest}: tier {tier} is the cheapest tier that may answer{_ruled_out(barred, held)}"
    if inputs.is_constant and inputs.constant is not None:
        return (
            f"constant: tier {inputs.constant.tier} answers, because routing does not pay here; at least "
            f"{inputs.constant.meets:.0%} of its answers are good enough, and the quality target asks for "
            f"{inputs.quality_target:.0%}" + (f"{_ruled_out(barred, held)}" if barred or held else "")
        )
    if (edge := inputs.edge) is not None and edge.tier == tier:
        return (
            f"fast path: the prompt has {edge.prompt_tokens} tokens (limit {edge.max_prompt_tokens}) and the answer at "
            f"most {edge.new_tokens} (limit {edge.max_new_tokens}), so tier {tier} answers without the classifier"
        )
    arm = "" if inputs.arm is None else f" (arm {inputs.arm} of experiment {inputs.experiment_id})"
    if inputs.arm_tier == tier:
        return f"the experiment sends the request to tier {tier}{arm}"
    p_ok = inputs.prediction.p_ok[tier - 1]
    if held and len(barred) + len(held) == len(inputs.costs) - 1:
        why = f"tier {tier} is the only tier left, with P(good enough) {p_ok:.3f}"
    elif inputs.prediction.classes and not _is_kept(inputs, tier):
        why = _by_class(inputs, tier)
    elif inputs.objective == "utility":
        why = _by_utility(inputs, tier)
    elif _is_kept(inputs, tier):
        why = f"the session stays on tier {tier}, because the rest of it costs least there"
    elif p_ok >= inputs.tau:
        why = f"tier {tier} is the cheapest with P(good enough) {p_ok:.3f} >= {inputs.tau:.3f}"
    else:
        why = f"no allowed tier reaches P(good enough) {inputs.tau:.3f}; tier {tier} is the strongest allowed"
    if inputs.session is not None and inputs.session.rest_usd and inputs.pinned_tier is None:
        why += _rest_of(inputs.session, tier)
    source = ""
    if inputs.prediction.kind == "heuristic":
        source = " (judged by the prompt's length, because the classifier failed)"
    if inputs.prediction.kind == "prior" and not inputs.prediction.labels:
        source = " (a first estimate: this catalogue has no measured outcomes yet)"
    if inputs.prediction.from_others:
        source += " (other tenants' labels count too)"
    if inputs.prediction.material:
        source += f" (read without its {' and '.join(inputs.prediction.material)})"
    canary = f" (version {inputs.prediction.classifier_version} on trial)" if inputs.canary else ""
    return f"{why}{source}{canary}{arm}{_ruled_out(barred, held) if barred or held else ''}"


def _is_kept(inputs: Objective, tier: int) -> bool:
    """Return whether a session stays on `tier` although a cheaper one would be good enough, by the rule `target`."""
    step = inputs.session
    kept = step is not None and bool(step.rest_usd) and tier == step.previous and inputs.objective == "target"
    return kept and max(inputs.prediction.p_ok[: tier - 1], default=0.0) >= inputs.tau


def _rest_of(step: SessionRule, tier: int) -> str:
    """Return what the rest of the session is expected to cost, here and where it was."""
    said = f"; the rest of the session costs ${step.rest_usd[tier - 1]:.6f} there"
    if tier == step.previous:
        return said
    return f"{said}, and ${step.rest_usd[step.previous - 1]:.6f} on tier {step.previous}"


def _ruled_out(barred: dict[int, str], held: dict[int, str]) -> str:
    ruled_out = "".join(f"; not tier {k}: {barred[k]}" for k in sorted(barred))
    for reason in dict.fromkeys(held[k] for k in sorted(held)):
        tiers = ", ".join(str(k) for k in sorted(held) if held[k] == reason)
        ruled_out += f"; not tier{'s' if ',' in tiers else ''} {tiers}: {reason}"
    return ruled_out


def _by_class(inputs: Objective, tier: int) -> str:
    classes = inputs.prediction.classes
    likeliest = classes.index(max(classes))
    p_ok, costs = inputs.prediction.p_ok[tier - 1], inputs.costs
    follow_up = inputs.prediction.follow_up
    read = "" if follow_up is None else f", {follow_up}"
    by_class = f"{_CLASS_NAMES[likeliest]} ({classes[likeliest]:.2f}){read}: {_known(inputs.prediction, tier)}"
    if inputs.objective == "utility":
        return by_class + _by_utility(inputs, tier)
    if p_ok >= inputs.tau:
        why = f"tier {tier} is the cheapest with P(good enough) {p_ok:.2f} >= {inputs.tau:.2f}"
    else:
        why = f"no allowed tier reaches P(good enough) {inputs.tau:.2f}, and tier {tier} is the strongest allowed"
    saving = f"; ${costs[tier - 1]:.6f} instead of ${costs[-1]:.6f}" if tier < len(costs) else ""
    return f"{by_class}{why}{saving}"


def _by_utility(inputs: Objective, tier: int) -> str:
    """Return the objective in words: the tier's two figures, and how much probability a dollar counts as."""
    return (
        f"tier {tier} has the highest utility, with P(good enough) {inputs.prediction.p_ok[tier - 1]:.2f} for "
        f"${inputs.costs[tier - 1]:.6f}; the strongest tier usually costs ${inputs.reference:.6f}, which counts as "
        f"{100 * inputs.exchange:.3g} points of P"
    )


def _known(prediction: Prediction, tier: int) -> str:
    """Return the rate of good answers of the tier to such prompts, if there are labels."""
    labels = round(prediction.labels[tier - 1]) if tier <= len(prediction.labels) else 0
    if labels == 0:
        return ""
    return f"tier {tier} was good enough for {round(prediction.good_labels[tier - 1])} of {labels} such prompts; "


def _check(inputs: PolicyInputs) -> None:
    p_ok, costs = inputs.prediction.p_ok, inputs.costs
    tiers = len(costs)
    if not tiers or len(p_ok) != tiers:
        raise PolicyInputsError(f"p_ok has {len(p_ok)} tiers and costs {tiers}; both need the same number, at least 1.")
    # The sums are not numbers if anything is not: then no comparison of them holds.
    if not (min(p_ok) >= 0.0 and max(p_ok) <= 1.0 and sum(p_ok) >= 0.0):
        raise PolicyInputsError(f"p_ok is {p_ok}; probabilities lie in [0, 1].")
    if not (costs[0] >= 0.0 and sum(costs) < math.inf and sorted(costs) == costs):
        raise PolicyInputsError(f"costs are {costs}; they must be finite, at least 0 and not fall with the tier.")
    if costs[-1] <= 0:
        raise PolicyInputsError(f"the strongest tier's cost is {costs[-1]}; it must be above 0.")
    if not 0.0 <= inputs.tau <= 1.0:
        raise PolicyInputsError(f"tau is {inputs.tau}; it must lie in [0, 1].")
    if inputs.objective == "utility" and not 0.0 <= inputs.quality_target <= 1.0:
        raise PolicyInputsError(f"quality_target is {inputs.quality_target}; it must lie in [0, 1].")
    if inputs.reference_usd is not None and not 0.0 < inputs.reference_usd < math.inf:
        raise PolicyInputsError(f"reference_usd is {inputs.reference_usd}; it must be finite and above 0.")
    if inputs.reuse_usd and len(inputs.reuse_usd) != tiers:
        raise PolicyInputsError(f"reuse_usd has {len(inputs.reuse_usd)} tiers and costs {tiers}; give one for each.")
    if inputs.most_wait_seconds is not None and len(inputs.predicted_waits) != tiers:
        raise PolicyInputsError(f"predicted_waits has {len(inputs.predicted_waits)} tiers and costs {tiers}; give all.")
    for exclusion in inputs.exclusions:
        if not 1 <= exclusion.tier <= tiers:
            raise PolicyInputsError(f"exclusion of tier {exclusion.tier}; allowed are 1 to {tiers}.")
    named = (
        inputs.pinned_tier,
        inputs.min_tier,
        inputs.key_min_tier,
        inputs.previous_tier,
        inputs.arm_tier,
        inputs.observe_tier,
        None if inputs.constant is None else inputs.constant.tier,
        None if inputs.rules is None else inputs.rules.tier,
    )
    # Most requests name none, and comparing with that is quicker than eight looks.
    if named == _NONE_NAMED:
        return
    for name, tier in zip(_NAMES, named, strict=True):
        if tier is not None and not 1 <= tier <= tiers:
            raise PolicyInputsError(f"{name} is {tier}; allowed are 1 to {tiers}.")


def heuristic_prediction(prompt: RoutingInput, tiers: int = 4) -> Prediction:
    """Predict without an artefact, while the classifier is unavailable (RT-13): p_ok falls with the prompt's length and
    signs of reasoning; ordered, not calibrated.

    Novelty is 0: the classifier is unavailable, and that must not send all traffic to one tier.
    """
    request = prompt.request
    length = (min(max(request.turn_chars, SHORT_CHARS), LONG_CHARS) - SHORT_CHARS) / (LONG_CHARS - SHORT_CHARS)
    lower = request.turn.lower()
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
