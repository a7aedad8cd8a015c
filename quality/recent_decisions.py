"""A sample of the routing decisions of a stretch of time, through the index: its cost does not grow with traffic."""

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import PolicyInputs
from migrations.tables import routing_decisions

SLOTS, PER_SLOT = 48, 25


class SampledDecision(NamedTuple):
    """What one decision was made from; it stands for `weight` requests."""

    inputs: PolicyInputs
    weight: float


async def sample_decisions(engine: AsyncEngine, since: float, until: float) -> list[SampledDecision]:
    """Decisions from `since` to `until` (epoch seconds, exclusive), oldest first.

    Of each of `SLOTS` equal parts of the time the first `PER_SLOT` are taken. Where there are no more, that is all of
    them; where there are, each stands for as many as came in the part at the pace of those.
    """
    length = (until - since) / SLOTS
    columns = (routing_decisions.c.created_at, routing_decisions.c.inputs)
    found: list[SampledDecision] = []
    async with engine.connect() as connection:
        for slot in range(SLOTS):
            start = since + slot * length
            at = routing_decisions.c.created_at
            query = select(*columns).where(at >= start, at < start + length).order_by(at).limit(PER_SLOT)
            rows = (await connection.execute(query)).all()
            full = len(rows) == PER_SLOT
            weight = length / max(rows[-1].created_at - start, length * 1e-6) if full else 1.0
            known = [inputs for row in rows if (inputs := _inputs(row.inputs)) is not None]
            found += [SampledDecision(inputs, max(weight, 1.0)) for inputs in known]
    return found


def _inputs(stored: Any) -> PolicyInputs | None:
    """None for what another version of this program has written and this one cannot read."""
    try:
        return msgspec.convert(stored, PolicyInputs)
    except msgspec.ValidationError:
        return None
