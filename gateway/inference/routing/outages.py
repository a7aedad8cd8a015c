"""Which answers fell short of their quality target because a tier that was worth more could not answer."""

from classifier.policy.utility import worths
from gateway.inference.routing.exclusions import DOWN
from quality.records.record import Record


def is_below_target(record: Record) -> bool:
    """Return whether the answer is no worse with a P below the request's quality target, and a tier that was down, or
    failed before it answered, would have been chosen instead. A request that names its tier has it."""
    inputs = record.decision.inputs
    if record.status != "ok" or not record.is_made or inputs.pinned_tier is not None:
        return False
    away = {one.tier for one in inputs.exclusions if one.reason == DOWN}
    away |= {one.tier for one in record.attempts if one.status == "error" and one.compared_as is None}
    away.discard(record.tier)
    p_ok = inputs.prediction.p_ok
    if not away or p_ok[record.tier - 1] >= inputs.quality_target:
        return False
    if inputs.objective == "target":
        return any(p_ok[tier - 1] >= inputs.tau for tier in away)
    worth = worths(inputs.prediction, inputs.costs, inputs.reference, inputs.exchange)
    return any(worth[tier - 1] > worth[record.tier - 1] for tier in away)
