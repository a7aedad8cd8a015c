"""What was learned: labels and the curve, by key and in words."""

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import adequacies, like_of
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys
from quality.learning.learning import LabelSource, Learning, LearningRecord, in_words
from quality.verification.training_rows import encode_prompt

NOW = 100_000.0


@pytest.fixture(scope="module")
def model() -> OutcomeModel:
    return load_artefact(default_artefact())


def source(model: OutcomeModel) -> LabelSource:
    return LabelSource(model=model, tiers=(), prior=adequacies(like_of(4))[:, :-1])


async def label(engine: AsyncEngine, model: OutcomeModel, key: str | None, count: int, *, good: bool = False) -> None:
    rows = []
    for i in range(count):
        encoded = encode_prompt(model, [{"role": "user", "content": f"Name word {i}, please."}])
        rows.append(
            {"request_id": f"{key}-{i}", "key_id": key, "source": "probe", "feature_spec": encoded.feature_spec,
             "embedding": encoded.embedding, "features": encoded.features, "no_worse": [good, True, True, True],
             "weights": [1.0] * 4, "classes": [0.97, 0.01, 0.01, 0.01], "created_at": 1000.0 + i}
        )  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), rows)


async def learned(engine: AsyncEngine, model: OutcomeModel) -> Learning:
    return await LearningRecord(engine).of(source(model))


async def test_keys_are_listed_by_their_labels(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    await label(any_engine, model, "carol", 2)
    await label(any_engine, model, "alice", 37)
    await label(any_engine, model, None, 1)

    found = await learned(any_engine, model)

    alice, carol, keyless = found.keys
    assert [(one.key_id, one.labels) for one in found.keys] == [("alice", 37), ("carol", 2), (None, 1)]
    assert (found.together.labels, carol.curve, keyless.curve) == (40, None, None)
    assert alice.curve is not None
    assert [point.labels for point in alice.curve.points] == [0, 25]
    assert alice.curve.points[1].error < alice.curve.points[0].error


async def test_curves_are_drawn_again_only_after_labels_came_or_went(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    kept = LearningRecord(sqlite_engine, redraw_seconds=0.0)
    assert (await kept.of(source(model))).keys == []
    await label(sqlite_engine, model, "alice", 20)
    first = (await kept.of(source(model))).keys[0].curve
    assert first is not None
    assert (await kept.of(source(model))).keys[0].curve is first
    async with sqlite_engine.begin() as connection:
        await connection.execute(delete(training_rows).where(training_rows.c.request_id == "alice-3"))
    again = (await kept.of(source(model))).keys[0]
    assert again.labels == 19
    assert again.curve is not first


async def test_a_look_that_takes_long_is_answered_with_what_was_known_and_goes_on(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    kept = LearningRecord(sqlite_engine, redraw_seconds=0.0)
    assert await kept.at_hand(source(model), 0.0) is None
    assert kept._running is not None
    assert (await kept._running).keys == []
    await label(sqlite_engine, model, "alice", 2)
    assert await kept.at_hand(source(model), 60.0) == await kept._running
    await kept.at_hand(source(model), 0.0)
    await kept.close()


async def test_keys_are_named_as_their_owners_named_them(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    row = {
        "key_id": "k-1", "name": "support desk", "prefix": "p", "digest": "d", "scopes": [], "consent": True,
        "priority_ceiling": 1, "created_at": 1.0,
    }  # fmt: skip
    async with sqlite_engine.begin() as connection:
        await connection.execute(insert(api_keys).values(row))
    await label(sqlite_engine, model, "k-1", 3)
    assert in_words((await learned(sqlite_engine, model)).keys[0]) == (
        "support desk: 3 of 100 labels; from about 100 on, the key has its own model."
    )


async def test_a_key_with_a_curve_says_what_its_labels_changed(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await label(sqlite_engine, model, "alice", 60)
    said = in_words((await learned(sqlite_engine, model)).keys[0])
    assert "alice: 60 of 100 labels; from about 100 on, the key has its own model." in said
    assert "On its 20 newest labels, the prediction error fell from" in said
    assert "; each tier's own rate alone gives 0." in said
