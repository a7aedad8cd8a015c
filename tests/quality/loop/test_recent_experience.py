"""Recent outcomes come from the database: every replica has them, and they leave for known reasons."""

import shutil

import msgspec
import numpy as np
import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tiny_classifier import base_artefact, experience_row

from classifier.artefact import load_artefact
from classifier.manifest import TrainingWindow
from classifier.outcome_model import OutcomeModel
from classifier.recent_memory import RecentOutcomes
from classifier.repair import repaired, unrepaired
from classifier.routing_input import routing_input_of_text
from migrations.tables import audit_events, training_rows
from quality.experience import FEEDBACK_WEIGHT, TRAINED_ON
from quality.recent_experience import RecentExperience, reset_promotions

DAY = 86_400.0
PROMPT = "Tell me about cotton table window garden river"
NOW = 1000.0 + DAY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OutcomeModel:
    folder = tmp_path_factory.mktemp("shipped")
    model = load_artefact(base_artefact(folder))
    shutil.rmtree(folder)
    return model


async def store(
    engine: AsyncEngine,
    model: OutcomeModel,
    count: int,
    *,
    at: float = 1000.0,
    source: str = "probe",
) -> None:
    rows = [
        experience_row(model, f"{source}-{at}-{i}", PROMPT, good=False) | {"created_at": at + i, "source": source}
        for i in range(count)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), rows)


def p_ok_of(model: OutcomeModel, outcomes: RecentOutcomes) -> float:
    """Of tier 1 for the prompt about which bad outcomes are stored."""
    given = routing_input_of_text(PROMPT)
    return repaired(model.predict(given), model.encode(given).embedding, outcomes).p_ok[0]


async def test_stored_outcomes_repair_predictions_and_say_so(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 12)
    given = routing_input_of_text(PROMPT)
    own = model.predict(given)

    outcomes = await RecentExperience(sqlite_engine, model).catch_up(NOW)
    prediction = repaired(own, model.encode(given).embedding, outcomes)

    assert own.p_ok[0] > 0.8
    assert prediction.p_ok[0] < 0.4
    assert prediction.p_ok[1:] == own.p_ok[1:]
    assert prediction.p_ok_before == own.p_ok
    [(_, effect)] = [one for one in prediction.contributions if one[0] == "verified outcomes nearby"]
    assert effect < -1
    assert unrepaired(prediction) == own


async def test_what_one_replica_stores_another_takes_in(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    other = RecentExperience(any_engine, model)
    assert len(await other.catch_up(NOW)) == 0
    await store(any_engine, model, 6)
    assert len(await other.catch_up(NOW)) == 6
    await store(any_engine, model, 6, at=2000.0)
    assert len(await other.catch_up(NOW)) == 12


async def test_rows_that_are_deleted_expire_or_come_late_change_what_is_known(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(sqlite_engine, model, 12)
    following = RecentExperience(sqlite_engine, model)
    assert p_ok_of(model, await following.catch_up(NOW)) < 0.4

    numbers = select(training_rows.c.training_row_id).order_by(training_rows.c.training_row_id).limit(4).offset(4)
    async with sqlite_engine.begin() as connection:
        await connection.execute(delete(training_rows).where(training_rows.c.training_row_id.in_(numbers)))
    assert len(await following.catch_up(NOW)) == 8
    assert len(await following.catch_up(1000.5 + 7 * DAY)) == 7
    assert len(await following.catch_up(1100.0 + 7 * DAY)) == 0


async def test_rows_that_trained_the_version_are_not_used_twice(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(sqlite_engine, model, 12)
    await store(sqlite_engine, model, 3, at=2000.0)
    window = TrainingWindow(start=None, end="1970-01-01T00:16:51+00:00", source=TRAINED_ON)  # 1011 s
    manifest = msgspec.structs.replace(model.manifest, training_window=window)
    newer = OutcomeModel(manifest, model.encoder, model.heads, model.memory)

    assert len(await RecentExperience(sqlite_engine, newer).catch_up(NOW)) == 3
    assert len(await RecentExperience(sqlite_engine, model).catch_up(NOW)) == 15


async def test_rows_of_another_encoder_are_no_neighbours(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 12)
    async with sqlite_engine.begin() as connection:
        await connection.execute(update(training_rows).values(feature_spec="another"))
    assert len(await RecentExperience(sqlite_engine, model).catch_up(NOW)) == 0


async def test_a_reset_ends_promotions_everywhere_and_is_written_down(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(sqlite_engine, model, 12)
    one, other = RecentExperience(sqlite_engine, model), RecentExperience(sqlite_engine, model)
    assert p_ok_of(model, await one.catch_up(NOW)) < 0.4

    await reset_promotions(sqlite_engine, actor="ann", reason="the tier is mended", now=NOW)

    assert len(await one.catch_up(NOW)) == len(await other.catch_up(NOW)) == 0
    async with sqlite_engine.connect() as connection:
        [row] = (await connection.execute(select(audit_events))).mappings().all()
    assert (row["actor"], row["action"], row["reason"]) == ("ann", "promotions.reset", "the tier is mended")
    await store(sqlite_engine, model, 12, at=NOW + 1)
    assert p_ok_of(model, await one.catch_up(NOW + 60)) < 0.4


async def test_complaints_count_less_than_verifications(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    """Users who complain do not do so at random."""
    await store(sqlite_engine, model, 4, source="feedback")
    following = RecentExperience(sqlite_engine, model)
    assert p_ok_of(model, await following.catch_up(NOW)) > 0.8
    assert 0 < FEEDBACK_WEIGHT < 1
    await store(sqlite_engine, model, 60, at=2000.0, source="feedback")
    assert p_ok_of(model, await following.catch_up(NOW)) < 0.8
    assert np.isfinite((await following.catch_up(NOW)).neighbourhoods()[0].evidence)
