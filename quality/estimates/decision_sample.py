"""A sample of the routing decisions of a period, read through the index so that its cost does not grow with traffic."""

from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Select, Text, bindparam, cast, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import PolicyInputs
from migrations.tables.requests import routing_decisions

SLOTS, PER_SLOT = 48, 25


class SampledDecision(NamedTuple):
    """The inputs of one decision; it stands for `weight` requests."""

    inputs: PolicyInputs
    weight: float


async def sample_decisions(engine: AsyncEngine, since: float, until: float) -> list[SampledDecision]:
    """Return decisions from `since` to `until` (epoch seconds, exclusive), oldest first.

    The period is divided into `SLOTS` equal parts, and the first `PER_SLOT` decisions of each are read. A part with
    more decisions is extrapolated from the rate of those read.
    """
    length = (until - since) / SLOTS
    bounds = {f"bound_{slot}": since + slot * length for slot in range(SLOTS)} | {f"bound_{SLOTS}": until}
    async with engine.connect() as connection:
        rows = (await connection.execute(_SAMPLE, bounds)).all()
    found: list[SampledDecision] = []
    for slot, taken in groupby(sorted(rows, key=_by_time), key=attrgetter("slot")):
        part = list(taken)
        full = len(part) == PER_SLOT
        weight = length / max(part[-1].created_at - bounds[f"bound_{slot}"], length * 1e-6) if full else 1.0
        known = [inputs for row in part if (inputs := _inputs(row.inputs)) is not None]
        found += [SampledDecision(inputs, max(weight, 1.0)) for inputs in known]
    return found


def _first_of(slot: int) -> Select[Any]:
    at = routing_decisions.c.created_at
    first = (
        select(literal(slot).label("slot"), at, cast(routing_decisions.c.inputs, Text).label("inputs"))
        .where(at >= bindparam(f"bound_{slot}"), at < bindparam(f"bound_{slot + 1}"))
        .order_by(at)
        .limit(PER_SLOT)
    )
    return select(first.subquery())


# One statement, because round trips would dominate the time of many.
_SAMPLE = union_all(*(_first_of(slot) for slot in range(SLOTS)))
_by_time = attrgetter("created_at")
_read_inputs = msgspec.json.Decoder(PolicyInputs).decode


def _inputs(stored: str) -> PolicyInputs | None:
    """Decode the inputs; None where another version of this program wrote them and they cannot be read."""
    try:
        return _read_inputs(stored)
    except msgspec.ValidationError:
        return None
