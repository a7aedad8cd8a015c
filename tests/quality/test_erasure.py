"""Erasing a user: the store keeps none of the user's rows, and all others."""

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows
from quality.privacy import erase_user
from tests.quality.loop_world import rows
from tests.quality.retraining.tiny_classifier import experience_row, model_in


async def test_the_users_rows_are_gone_and_all_others_stay(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    model = model_in(registry)
    made = [
        experience_row(model, f"{user}-{i}", f"Tell me about {topic} {i}", True)
        | {"key_id": user, "created_at": 1000.0}
        for user, topic in (("ada", "gamma"), ("bob", "delta"))
        for i in range(3)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)

    erased = await erase_user(engine, "ada", actor="ann", reason="she asked", now=2000.0)

    assert erased.training_rows == 3
    assert {row["key_id"] for row in await rows(engine, training_rows)} == {"bob"}
    [event] = await rows(engine, audit_events)
    assert (event["action"], event["actor"], event["subject"]) == ("user.erased", "ann", "ada")


async def test_erasing_a_user_without_data_changes_nothing(engine: AsyncEngine) -> None:
    erased = await erase_user(engine, "nobody", actor="ann", reason="", now=2000.0)
    assert (erased.requests, erased.training_rows) == (0, 0)
