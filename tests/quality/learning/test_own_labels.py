"""A catalogue's own labels come from the database: inserts and deletions take effect at once, on every replica."""

import shutil
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.class_predictor import ClassPredictor
from classifier.decision import Prediction
from classifier.features.routing_input import routing_input
from classifier.local.cells import LABELS_BOUND
from classifier.local.own import OwnOutcomes
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import load_artefact
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys, teams
from quality.learning.own_labels import OwnLabels
from quality.retraining.train_candidate import exported_labels
from quality.store.queries import reset_labels
from quality.verification.training_rows import encode_prompt, export_rows, whole_classes_of
from tests.quality.retraining.tiny_classifier import base_artefact, experience_row

PROMPT = "Tell me about cotton table window garden river"
NOW = 100_000.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OutcomeModel:
    folder = tmp_path_factory.mktemp("shipped")
    model = load_artefact(base_artefact(folder))
    shutil.rmtree(folder)
    return model


async def store(engine: AsyncEngine, model: OutcomeModel, count: int, **changed: Any) -> None:
    given = routing_input([{"role": "user", "content": PROMPT}])
    classes = ClassPredictor(model).classes(given, model.encode(given))
    rows = [
        experience_row(model, f"{changed.get('key_id')}-{i}", PROMPT, good=False)
        | {"created_at": 1000.0 + i, "source": "probe", "classes": classes}
        | changed
        for i in range(count)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), rows)


def following(engine: AsyncEngine, model: OutcomeModel) -> OwnLabels:
    return OwnLabels(engine, model, ClassPredictor(model).table)


def predicted(
    model: OutcomeModel, own: OwnOutcomes | None, key: str = "", tenant: str | None = None, from_others: bool = False
) -> Prediction:
    given = routing_input([{"role": "user", "content": PROMPT}], key=key, tenant=key if tenant is None else tenant)
    given = msgspec.structs.replace(given, from_others=from_others)
    return ClassPredictor(model).prediction(given, model.encode(given), own)


async def test_labels_change_the_prediction_and_are_counted(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    labels = following(any_engine, model)
    assert await labels.catch_up(NOW) is None
    before = predicted(model, None)
    await store(any_engine, model, 40, key_id="team-a")
    own = await labels.catch_up(NOW)
    assert own is not None
    after = predicted(model, own, "team-a")

    assert after.p_ok[0] < before.p_ok[0] - 0.2
    assert after.p_ok[-1] == 1.0
    assert (own.labels_of("team-a"), own.labels_of("team-b")) == (40, 0)
    # A label counts by how likely both prompts are of the same class.
    assert 10 < after.labels[0] <= 40
    assert after.good_labels[0] == 0.0
    assert before.labels == []
    assert after.novelty < 0.7 < before.novelty


async def test_stored_labels_keep_the_classes_of_whole_turns_where_they_bring_material(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    lines = "\n".join(f"2026-01-01 10:00:{second} ERROR segment 12 of /dev/sda" for second in range(10, 30))
    asked = [{"role": "user", "content": f"Is there any error?\n\n{lines}"}]
    given = routing_input(asked)
    whole = ClassPredictor(model).whole_classes(given, model.encode(given))
    encoded = msgspec.structs.asdict(encode_prompt(model, asked))
    await store(sqlite_engine, model, 1)
    await store(sqlite_engine, model, 1, request_id="with material", **encoded)
    names = len(model.manifest.feature_names)
    old = encoded | {"features": encoded["features"][: 4 * names]}
    await store(sqlite_engine, model, 1, request_id="of an earlier release", **old)
    found = await following(sqlite_engine, model).newest(3)
    assert [list(row.whole) for row in found] == [[], pytest.approx(whole), []]
    assert len({row.features.tobytes() for row in found[1:]}) == 1
    exported = await export_rows(sqlite_engine, model.manifest, [""] * 4)
    np.testing.assert_allclose(exported["whole"][1], whole, atol=1e-6)
    np.testing.assert_array_equal(exported["whole"][[0, 2]], exported["classes"][[0, 2]])
    np.testing.assert_array_equal(exported_labels(exported, {}).whole, exported["whole"])


@pytest.mark.parametrize(("logits", "whole"), [(0, 0), (0, 4), (7, 0), (7, 4)])
def test_classes_of_whole_turns_are_read_behind_the_logits_that_earlier_releases_stored(
    model: OutcomeModel, logits: int, whole: int
) -> None:
    manifest = msgspec.structs.replace(model.manifest, heads=[f"outcome {i}" for i in range(7)])
    stored = np.concatenate([np.zeros(len(manifest.feature_names) + logits), np.full(whole, 0.25)])
    assert whole_classes_of({"features": stored.astype("<f4").tobytes()}, manifest) == [0.25] * whole


async def test_the_errors_of_a_judge_do_not_move_the_rate(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    """Of answers that are all good a judge that is right in 80% calls 20% worse."""
    for count, good in ((160, True), (40, False)):
        said = {"no_worse": [good, None, None, True], "weights": [0.6, 0.0, 0.0, 0.0]}
        await store(sqlite_engine, model, count, key_id="k", source="verification", **said, request_id=None)
    own = await following(sqlite_engine, model).catch_up(NOW)
    assert predicted(model, own, "k").p_ok[0] > 0.93


async def test_one_keys_labels_say_more_of_its_own_prompts_than_of_anothers(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(sqlite_engine, model, 20, key_id="team-a")
    own = await following(sqlite_engine, model).catch_up(NOW)
    assert predicted(model, own, "team-a").p_ok[0] < predicted(model, own, "team-b").p_ok[0]


async def test_however_many_labels_of_one_tenant_move_another_by_at_most_the_bound(
    any_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await use_teams(any_engine)
    before = predicted(model, None, "team-b").p_ok[0]
    await store(any_engine, model, 300, key_id="team-a")
    own = await following(any_engine, model).catch_up(NOW)
    drawn = predicted(model, own, "team-b", from_others=True)
    assert before - LABELS_BOUND <= drawn.p_ok[0] < before
    assert predicted(model, own, "team-b").p_ok[0] == pytest.approx(before, abs=2e-6)
    assert predicted(model, own, "team-a").p_ok[0] < 0.1


async def test_a_prediction_says_whether_labels_of_other_tenants_count(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await use_teams(sqlite_engine)
    await store(sqlite_engine, model, 5, key_id="team-a")
    own = await following(sqlite_engine, model).catch_up(NOW)
    drawn = {key: predicted(model, own, key, from_others=True).from_others for key in ("team-a", "team-b")}
    # No other tenant taught team-a anything.
    assert drawn == {"team-a": False, "team-b": True}
    assert not predicted(model, own, "team-b").from_others


@pytest.mark.parametrize("good", [False, True])
async def test_feedback_counts_for_its_own_key_alone(
    sqlite_engine: AsyncEngine, model: OutcomeModel, good: bool
) -> None:
    await store(sqlite_engine, model, 300, key_id="team-a", source="feedback", no_worse=[good, good, None, True])
    own = await following(sqlite_engine, model).catch_up(NOW)
    nothing = predicted(model, None)
    assert predicted(model, own, "team-b").p_ok == nothing.p_ok
    assert predicted(model, own).p_ok == nothing.p_ok
    assert (predicted(model, own, "team-a").p_ok[0] > nothing.p_ok[0]) == good


async def test_a_tenants_labels_take_no_room_of_anothers(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(any_engine, model, 10, key_id="quiet")
    await store(any_engine, model, 60, key_id="loud")
    await store(any_engine, model, 40, key_id="louder")
    labels = following(any_engine, model)
    found = [row.key for row in await labels.newest(50)]
    assert {key: found.count(key) for key in found} == {"quiet": 10, "loud": 20, "louder": 20}
    assert [row.at for row in await labels.newest(2)] == [1059.0, 1039.0]
    assert len(await labels.newest(200)) == 110


async def use_teams(engine: AsyncEngine, *keys: str) -> None:
    """Put `keys` into the team t, and one more."""
    row = {"prefix": "p", "scopes": [], "consent": True, "priority_ceiling": 0, "created_at": 0.0, "team_id": "t"}
    async with engine.begin() as connection:
        await connection.execute(insert(teams).values(team_id="t", name="t", created_at=0.0))
        await connection.execute(
            insert(api_keys), [row | {"key_id": key, "name": key, "digest": key} for key in (*keys, "of t")]
        )


async def test_without_teams_all_keys_learn_from_each_other_and_thumbs_stay_with_theirs(
    any_engine: AsyncEngine, model: OutcomeModel
) -> None:
    labels = following(any_engine, model)
    nothing = predicted(model, None).p_ok[0]
    await store(any_engine, model, 300, key_id="thumbs", source="feedback")
    assert predicted(model, await labels.catch_up(NOW), "new").p_ok[0] == nothing
    await store(any_engine, model, 60, key_id="old")
    own = await labels.catch_up(NOW)
    assert predicted(model, own, "new").p_ok[0] < 0.25
    # As soon as a key has a team, the bound is kept between it and keys without one.
    await use_teams(any_engine)
    own = await labels.catch_up(NOW)
    assert predicted(model, own, "new").p_ok[0] == pytest.approx(nothing, abs=2e-6)
    assert predicted(model, own, "new", from_others=True).p_ok[0] > nothing - LABELS_BOUND


async def test_keys_are_tenants_of_their_own_where_the_operator_says_so(
    any_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(any_engine, model, 60, key_id="old")
    nothing = predicted(model, None).p_ok[0]
    labels = OwnLabels(any_engine, model, ClassPredictor(model).table, keys_are_tenants=True)
    own = await labels.catch_up(NOW)
    assert predicted(model, own, "new").p_ok[0] == pytest.approx(nothing, abs=2e-6)
    assert predicted(model, own, "old").p_ok[0] < 0.25


async def test_keys_of_a_team_are_one_tenant(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    await use_teams(any_engine, "one", "two")
    for key in ("one", "two", "alone"):
        await store(any_engine, model, 40, key_id=key)
    labels = following(any_engine, model)
    found = [row.key for row in await labels.newest(60)]
    assert (found.count("alone"), found.count("two")) == (30, 30)
    own = await labels.catch_up(NOW)
    # A third key of the team begins with what the team knows.
    assert predicted(model, own, "three", "t").p_ok[0] < 0.3 < predicted(model, own, "stranger").p_ok[0]


async def test_rows_without_changes_are_not_fitted_again(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 5)
    labels = following(sqlite_engine, model)
    assert await labels.catch_up(NOW) is await labels.catch_up(NOW + 60)


async def test_erased_labels_are_forgotten(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 6)
    labels = following(sqlite_engine, model)
    known = await labels.catch_up(NOW)
    assert known is not None
    some = select(training_rows.c.training_row_id).order_by(training_rows.c.training_row_id).limit(4)
    async with sqlite_engine.begin() as connection:
        await connection.execute(delete(training_rows).where(training_rows.c.training_row_id.in_(some)))
    fewer = await labels.catch_up(NOW)
    assert fewer is not None
    assert (known.labels, fewer.labels) == (6, 2)


async def test_a_reset_forgets_what_was_labelled_before(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 6)
    labels = following(sqlite_engine, model)
    await labels.catch_up(NOW)
    await reset_labels(sqlite_engine, actor="op", reason="wrong judge", now=5000.0)
    assert await labels.catch_up(NOW) is None


async def test_labels_from_before_a_tier_changed_count_for_little(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    await store(sqlite_engine, model, 40)
    own = await following(sqlite_engine, model).catch_up(NOW)
    async with sqlite_engine.begin() as connection:
        await connection.execute(
            insert(audit_events).values(
                created_at=3000.0,
                actor="monitor",
                action="quality.alarm",
                subject="tier 1",
                reason="it changed",
                details={"stream": "tier 1, familiar prompts", "since": 2900.0},
            )
        )
    decayed = await following(sqlite_engine, model).catch_up(NOW)
    assert predicted(model, decayed).p_ok[0] > 5 * predicted(model, own).p_ok[0]


async def test_a_change_that_one_tenants_answers_show_is_no_change_for_others(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    for key in ("team-a", "team-b"):
        await store(sqlite_engine, model, 40, key_id=key)
    before = await following(sqlite_engine, model).catch_up(NOW)
    alarm = {"stream": "tier 1, familiar prompts", "since": 2900.0, "tenant": "team-a"}
    async with sqlite_engine.begin() as connection:
        await connection.execute(
            insert(audit_events).values(
                created_at=3000.0, actor="monitor", action="quality.alarm", subject="tier 1", reason="it changed",
                details=alarm,
            )
        )  # fmt: skip
    after = await following(sqlite_engine, model).catch_up(NOW)
    assert predicted(model, after, "team-a").p_ok[0] > 1.5 * predicted(model, before, "team-a").p_ok[0]
    assert predicted(model, after, "team-b").p_ok[0] == pytest.approx(
        predicted(model, before, "team-b").p_ok[0], abs=0.01
    )


async def test_rows_of_earlier_releases_count_without_classes(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await store(sqlite_engine, model, 20, classes=None, app=None)
    own = await following(sqlite_engine, model).catch_up(NOW)
    assert own is not None
    assert predicted(model, own).p_ok[0] < predicted(model, None).p_ok[0]
