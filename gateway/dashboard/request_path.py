"""The path of one request: when each stage began and ended, why its tier was chosen, and what would have been."""

import asyncio

import msgspec
import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision, PolicyInputs
from classifier.errors import ArtefactError, NoTierAllowedError
from classifier.outcome_model import OutcomeModel
from classifier.policy import barred_tiers, decide
from classifier.routing_input import routing_input
from gateway.routing.loaded_version import LoadedVersion
from gateway.routing.model import rule_of
from gateway.routing.router import RoutingService
from gateway.routing.rule import heuristic_rule
from migrations.tables import verifications
from quality.record import Record

NEAREST = 5


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the request's arrival."""

    name: str
    begin_ms: float
    end_ms: float


class TierChance(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knew of a tier: P(no worse), P(correct), predicted cost and score, and what ruled it out."""

    tier: int
    p_ok: float
    p_correct: float | None
    cost_usd: float
    predicted_tokens: float | None
    score: float | None
    barred: str | None


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the artefact's memory: how near it is (cosine), and whether each tier below the strongest did as well
    there (1), did not (0), or it is not known (None)."""

    similarity: float
    no_worse: list[float | None]


def stages_of(record: Record) -> list[Stage]:
    """In order, as far as they were recorded. What lies between routing and the queue went to tiers before."""
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
    """By tier."""
    inputs = decision.inputs
    prediction, barred = inputs.prediction, barred_tiers(inputs)
    return [
        TierChance(
            tier=number,
            p_ok=prediction.p_ok[number - 1],
            p_correct=prediction.p_correct[number - 1] if prediction.p_correct else None,
            cost_usd=cost,
            predicted_tokens=prediction.predicted_tokens[number - 1] if prediction.predicted_tokens else None,
            score=decision.scores[number - 1],
            barred=barred.get(number),
        )
        for number, cost in enumerate(inputs.costs, start=1)
    ]


def rerouted(routing: RoutingService, record: Record, quality_target: float) -> Decision | str:
    """The decision at another quality target, from the recorded probabilities, prices and constraints and by the curve
    of the version in force; or why there is none."""
    inputs = record.decision.inputs
    if inputs.prediction.kind == "heuristic":
        rule = heuristic_rule(quality_target)
    else:
        rule = rule_of(routing.classifier, record.request_id, quality_target)
    wanted: PolicyInputs = msgspec.structs.replace(
        inputs, rule=rule.rule, quality_target=rule.quality_target, lambda_=rule.lambda_, tau=rule.tau
    )
    try:
        return decide(wanted)
    except NoTierAllowedError as error:
        return str(error)


async def nearest_examples(routing: RoutingService, record: Record) -> list[Example]:
    """The verified prompts nearest to this one in the memory of the version in force; none without its text, or without
    a version for as many tiers."""
    try:
        version = routing.classifier.model_for(record.request_id)
    except ArtefactError:
        return []
    if record.messages is None or not isinstance(version, LoadedVersion) or not version.fits_catalogue:
        return []
    return await asyncio.to_thread(_nearest, version.model, record.messages)


async def verifications_of(database: AsyncEngine, request_id: str) -> list[dict[str, object]]:
    """What was verified of the request, and what its user said, by tier."""
    query = select(verifications).where(verifications.c.request_id == request_id).order_by(verifications.c.tier)
    async with database.connect() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]


def _nearest(model: OutcomeModel, messages: list[dict[str, str]]) -> list[Example]:
    memory = model.memory
    similarity = memory.vectors @ model.encode(routing_input(messages)).embedding
    weaker = model.manifest.tiers - 1
    return [
        Example(
            similarity=float(similarity[row]),
            no_worse=[None if np.isnan(label) else float(label) for label in memory.labels[row, :weaker]],
        )
        for row in np.argsort(similarity)[::-1][:NEAREST]
    ]
