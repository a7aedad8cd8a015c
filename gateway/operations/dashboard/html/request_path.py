"""The path of one request: its stages over time, why its tier was chosen, and the decision at another target."""

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from classifier.errors import NoTierAllowedError
from classifier.policy.decide import barred_tiers, decide, held_back
from gateway.inference.routing.classifier_versions import RoutingRule, rule_of, ruled_by
from gateway.inference.routing.router import RoutingService
from migrations.tables.quality import verifications
from quality.records.record import Record


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the request's arrival."""

    name: str
    begin_ms: float
    end_ms: float


class TierChance(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knew of a tier: P(no worse), P(correct), predicted cost and score; `ruled_out`: why another tier was
    chosen, in words, None for the chosen one."""

    tier: int
    p_ok: float
    p_correct: float | None
    cost_usd: float
    predicted_tokens: float | None
    score: float | None
    ruled_out: str | None


def stages_of(record: Record) -> list[Stage]:
    """Return the recorded stages in order. Time between routing and the queue was spent on earlier tiers."""
    timings = record.timings
    found = [Stage(name="Route", begin_ms=0.0, end_ms=timings.route_ms)]
    first = timings.ttft_ms
    if first is not None and timings.queue_ms is not None and timings.prefill_ms is not None:
        queued = max(first - timings.prefill_ms - timings.queue_ms, 0.0)
        read = min(queued + timings.queue_ms, first)
        last = first + (timings.decode_ms or 0.0)
        found += [
            Stage(name="Queue", begin_ms=queued, end_ms=read),
            Stage(name="Prefill", begin_ms=read, end_ms=first),
            Stage(name="Decode", begin_ms=first, end_ms=last),
            Stage(name="Stream", begin_ms=last, end_ms=max(timings.e2e_ms, last)),
        ]
    elif first is not None:
        found += [
            Stage(name="To the first token", begin_ms=timings.route_ms, end_ms=first),
            Stage(name="Answer", begin_ms=first, end_ms=timings.e2e_ms),
        ]
    else:
        found.append(Stage(name="Answer", begin_ms=timings.route_ms, end_ms=timings.e2e_ms))
    return found


def chances_of(decision: Decision) -> list[TierChance]:
    """Return what routing knew, by tier."""
    inputs = decision.inputs
    prediction, barred = inputs.prediction, barred_tiers(inputs)
    reasons = barred | held_back(inputs, [k for k in range(1, len(inputs.costs) + 1) if k not in barred])
    return [
        TierChance(
            tier=number,
            p_ok=prediction.p_ok[number - 1],
            p_correct=prediction.p_correct[number - 1] if prediction.p_correct else None,
            cost_usd=cost,
            predicted_tokens=prediction.predicted_tokens[number - 1] if prediction.predicted_tokens else None,
            score=decision.scores[number - 1],
            ruled_out=None if number == decision.tier else reasons.get(number) or _why_not(decision, number),
        )
        for number, cost in enumerate(inputs.costs, start=1)
    ]


def _why_not(decision: Decision, tier: int) -> str:
    """Why a tier that may answer was not chosen."""
    inputs, chosen = decision.inputs, decision.tier
    by_rule = decision.tier if decision.would_be is None else decision.would_be
    if decision.would_be is not None and by_rule != chosen:
        if tier == by_rule:
            return f"routing is only observed, and tier {chosen} answers"
        return f"routing is only observed; it would have chosen tier {by_rule}"
    if inputs.rules is not None and inputs.rules.tier == chosen:
        return f"a rule gives it to tier {chosen}"
    if inputs.edge is not None and inputs.edge.tier == chosen:
        return f"short prompts go to tier {chosen} without the classifier"
    if inputs.arm_tier == chosen:
        return f"arm {inputs.arm} of the experiment is given tier {chosen}"
    p_ok = inputs.prediction.p_ok[tier - 1]
    if inputs.objective == "utility":
        theirs, ours = decision.scores[tier - 1], decision.scores[chosen - 1]
        return "" if theirs is None or ours is None else f"worth {theirs:.3f}, tier {chosen} {ours:.3f}"
    if p_ok < inputs.tau:
        what = "P(good enough)" if inputs.prediction.classes else "P(no worse)"
        return f"{what} {p_ok:.3f} is below {inputs.tau:.3f}"
    return f"good enough too, but no cheaper than tier {chosen}"


def rerouted(routing: RoutingService, record: Record, quality_target: float) -> Decision | str:
    """Decide again at another quality target, from the recorded probabilities, prices and constraints; or say why that
    is impossible."""
    inputs = record.decision.inputs
    if inputs.prediction.kind == "heuristic":
        rule = RoutingRule.of_heuristic(quality_target)
    else:
        rule = rule_of(routing.classifier, record.request_id, quality_target)
    try:
        return decide(ruled_by(inputs, rule))
    except NoTierAllowedError as error:
        return str(error)


async def verifications_of(database: AsyncEngine, request_id: str) -> list[dict[str, object]]:
    """Return the request's verifications and its user's feedback, by tier; of one that waits without its turn, which
    may be megabytes."""
    shown = [column for column in verifications.c if column.name != "turn"]
    query = select(*shown).where(verifications.c.request_id == request_id).order_by(verifications.c.tier)
    async with database.connect() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]
