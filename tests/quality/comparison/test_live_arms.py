"""Which answers count when two arms of the traffic are compared."""

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import routing_decisions
from quality.comparison.live_arms import served_answers
from quality.store.queries import insert_records
from tests.quality.loop_world import record


async def test_answers_in_observe_mode_belong_to_no_arm(engine: AsyncEngine) -> None:
    held, watched = record("held", created_at=10.0), record("watched", created_at=10.0)
    watched = msgspec.structs.replace(watched, decision=msgspec.structs.replace(watched.decision, would_be=1))
    verdicts = [
        {
            "request_id": one.request_id, "tier": one.tier, "model": "m", "sampled_probability": 0.01, "label": "worse",
            "sampled_reason": "sample", "status": "done", "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1,
            "created_at": 11.0, "finished_at": 12.0,
        }
        for one in (held, watched)
    ]  # fmt: skip
    async with engine.begin() as connection:
        await insert_records(connection, [held, watched])
        await connection.execute(insert(verifications), verdicts)

    found = await served_answers(engine, 5.0, 4, routing_decisions.c.classifier_version, [])

    assert [(answer.worse, answer.weight) for answer in found] == [(True, 1.0)]
