"""The rollout of a version: canary, all traffic, watch; rolled back on live evidence, with the reason (QM-07,
RT-14)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.registry.registry import ArtefactRegistry, Canary
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, rollouts, verifications
from quality.retraining.retrain import retrain
from quality.rollout import operator_commands
from quality.rollout.rollout import Rollouts, RolloutSettings
from quality.store.queries import insert_records
from tests.quality.loop_world import record, rows
from tests.quality.retraining.tiny_classifier import SETTINGS, model_in, store_experience
from tests.quality.rollout.rollout_world import (
    BAD,
    GOOD,
    QUICK,
    Table,
    begin,
    blind,
    break_file,
    forget_a_feature,
    inverted,
    store_probes,
    store_topics,
    variant,
)

pytestmark = pytest.mark.processes


@pytest.fixture
def rollout(engine: AsyncEngine, registry: ArtefactRegistry) -> Rollouts:
    return Rollouts(engine, registry, clock=lambda: 5000.0)


async def _status(engine: AsyncEngine, version: str) -> str:
    return str({row["version"]: row["status"] for row in await rows(engine, classifier_versions)}[version])


async def _last(engine: AsyncEngine, table: Any = audit_events) -> dict[str, Any]:
    return (await rows(engine, table))[-1]


async def test_a_canary_without_harm_serves_all_and_is_kept_after_its_watch(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts
) -> None:
    incumbent, model = registry.current().name, model_in(registry)
    await begin(rollout, engine, variant(registry, GOOD))
    assert registry.canary() == Canary(version=GOOD, share=0.1)
    assert await _status(engine, GOOD) == "canary"

    await store_probes(engine, model, 29, 5001.0)
    assert (said := await rollout.advance()) is not None
    assert said.act == "go on"
    assert (await _last(engine, rollouts))["evidence"]["paired"]["probes"] == 29

    await store_probes(engine, model, 1, 5002.0)
    await rollout.advance()
    assert (registry.current().name, registry.previous(), registry.canary()) == (GOOD, incumbent, None)
    assert (await _status(engine, GOOD), await _status(engine, incumbent)) == ("promoted", "retired")
    assert ((await _last(engine))["action"], (await _last(engine, rollouts))["stage"]) == (
        "classifier.promoted",
        "watch",
    )

    await store_probes(engine, model, 30, 5003.0)
    await rollout.advance()
    assert (await _last(engine, rollouts))["status"] == "kept"
    assert await rollout.advance() is None
    assert registry.current().name == GOOD


async def test_a_canary_without_enough_probes_ends_by_time_and_the_incumbent_stays(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    incumbent, now = registry.current().name, [5000.0]
    rollout = Rollouts(engine, registry, clock=lambda: now[0])
    await begin(rollout, engine, variant(registry, GOOD), msgspec.structs.replace(QUICK, days=2.0))
    await store_probes(engine, model_in(registry), 3, 5001.0)
    now[0] += 2 * 86_400 - 1
    assert (said := await rollout.advance()) is not None
    assert said.act == "go on"

    now[0] += 1
    await rollout.advance()

    assert (registry.current().name, registry.canary()) == (incumbent, None)
    assert await _status(engine, GOOD) == "refused"
    event = await _last(engine)
    assert (event["action"], event["details"]["paired"]["probes"]) == ("classifier.canary_stopped", 3)
    assert event["reason"].startswith("no evidence in 2 days: 3 probes (gain")
    ended = await _last(engine, rollouts)
    assert (ended["status"], ended["reason"]) == ("stopped", event["reason"])
    assert await rollout.advance() is None


@pytest.mark.parametrize("table", [blind(), inverted()])
async def test_a_canary_that_probes_show_to_be_worse_is_rolled_back_with_the_reason(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts, table: Table
) -> None:
    incumbent, model = registry.current().name, model_in(registry)
    patient = msgspec.structs.replace(QUICK, patience=1000)
    await begin(rollout, engine, variant(registry, BAD, table), patient)
    await store_probes(engine, model, 200, 5001.0)

    await rollout.advance()

    assert (registry.current().name, registry.canary()) == (incumbent, None)
    assert await _status(engine, BAD) == "rolled_back"
    event = await _last(engine)
    assert (event["action"], event["subject"]) == ("classifier.rolled_back", BAD)
    assert f"worse than {incumbent} on 200 probes" in event["reason"]
    assert event["details"]["paired"]["gain"] < 0


async def test_a_version_promoted_at_once_is_watched_and_rolled_back_automatically(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts
) -> None:
    incumbent, model = registry.current().name, model_in(registry)
    await begin(rollout, engine, variant(registry, BAD, blind()), msgspec.structs.replace(QUICK, share=0.0))
    assert registry.current().name == BAD

    await store_probes(engine, model, 40, 5001.0)
    await rollout.advance()

    assert registry.current().name == incumbent
    assert (await _status(engine, BAD), await _status(engine, incumbent)) == ("rolled_back", "promoted")
    assert (await _last(engine))["action"] == "classifier.rolled_back"


async def test_probes_from_before_the_rollout_do_not_count(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts
) -> None:
    await store_probes(engine, model_in(registry), 200, 4000.0)
    await begin(rollout, engine, variant(registry, BAD, blind()))

    assert (await _last(engine, rollouts))["evidence"]["paired"]["probes"] == 0
    assert registry.canary() is not None


@pytest.mark.parametrize(
    ("damage", "reason"), [(break_file, "changed or cut short"), (forget_a_feature, "surface features")]
)
async def test_a_canary_that_cannot_serve_is_rolled_back_with_the_reason(
    engine: AsyncEngine,
    registry: ArtefactRegistry,
    rollout: Rollouts,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    await begin(rollout, engine, variant(registry, GOOD))
    damage(registry.folder(GOOD))

    await rollout.advance()

    assert registry.canary() is None
    event = await _last(engine)
    assert event["action"] == "classifier.rolled_back"
    assert reason in event["reason"]


async def test_answers_as_served_end_a_trial_that_probes_say_nothing_about(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts
) -> None:
    incumbent = registry.current().name
    await begin(rollout, engine, variant(registry, BAD))
    await _verify(engine, [BAD if number % 4 == 0 else incumbent for number in range(120)], worse=BAD)

    await rollout.advance()

    assert (await _status(engine, BAD), registry.canary()) == ("rolled_back", None)
    assert f"100.0% of 30 verified answers were worse, 0.0% of 90 of {incumbent}'s" in (await _last(engine))["reason"]


async def _verify(engine: AsyncEngine, versions: list[str], *, worse: str) -> None:
    """Answers of tier 1, decided by `versions` in turn and verified; those of one version were worse."""
    made, found = [], []
    for number, version in enumerate(versions):
        one = record(f"req-{number}", created_at=5001.0)
        prediction = msgspec.structs.replace(one.decision.inputs.prediction, classifier_version=version)
        inputs = msgspec.structs.replace(one.decision.inputs, prediction=prediction)
        made.append(msgspec.structs.replace(one, decision=msgspec.structs.replace(one.decision, inputs=inputs)))
        found.append({
            "request_id": one.request_id, "tier": 1, "model": "m", "sampled_probability": 0.01,
            "sampled_reason": "sample", "status": "done", "label": "worse" if version == worse else "no_worse",
            "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": 5002.0, "finished_at": 5003.0,
        })  # fmt: skip
    async with engine.begin() as connection:
        await insert_records(connection, made)
        await connection.execute(insert(verifications), found)


async def test_poisoned_labels_pass_the_judge_and_probes_roll_the_version_back(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    incumbent, model = registry.current().name, model_in(registry)
    await store_experience(engine, model, 2500)
    at = [5000.0]
    # The labels are inverted: gamma is easy and delta is hard.
    result = await retrain(engine, registry, SETTINGS, trigger="cli", clock=lambda: at[0])
    assert result.outcome == "canary", result.reason
    rollout = Rollouts(engine, registry, clock=lambda: at[0])

    while await rollout.running() is not None:
        at[0] += 1000.0
        await store_topics(engine, model, 100, at[0], {"gamma": True, "delta": False})
        await rollout.advance()

    assert (registry.current().name, registry.canary()) == (incumbent, None)
    assert await _status(engine, str(result.candidate)) == "rolled_back"
    assert (await _last(engine))["action"] == "classifier.rolled_back"


async def test_an_operators_trial_waits_for_the_operator_and_still_ends_on_harm(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    model, order = model_in(registry), {"actor": "ann", "reason": "curious"}
    variant(registry, GOOD), variant(registry, BAD, blind())
    rollout = Rollouts(engine, registry)
    await operator_commands.start_canary(engine, registry, GOOD, 0.5, **order)
    await store_probes(engine, model, 150, 9e9)
    await rollout.advance()
    assert registry.canary() == Canary(version=GOOD, share=0.5)

    await operator_commands.start_canary(engine, registry, BAD, 0.5, **order)
    assert [row["status"] for row in await rows(engine, rollouts)] == ["superseded", "running"]
    assert await _status(engine, GOOD) == "refused"
    await rollout.advance()
    assert registry.canary() is None
    assert await _status(engine, BAD) == "rolled_back"


async def test_manual_commands_end_a_running_rollout(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    incumbent, order = registry.current().name, {"actor": "ann", "reason": "complaints"}
    variant(registry, GOOD)
    await operator_commands.start_canary(engine, registry, GOOD, 0.1, **order)
    assert await operator_commands.stop_canary(engine, registry, **order) == GOOD
    assert await operator_commands.stop_canary(engine, registry, **order) is None
    assert await operator_commands.promote(engine, registry, GOOD, **order) == incumbent
    assert (await _status(engine, GOOD), (await _last(engine, rollouts))["stage"]) == ("promoted", "watch")

    assert await operator_commands.rollback(engine, registry, **order) == incumbent

    assert registry.current().name == incumbent
    assert [row["status"] for row in await rows(engine, rollouts)] == ["stopped", "superseded"]
    assert (await _status(engine, GOOD), await _status(engine, incumbent)) == ("retired", "promoted")
    assert (await _last(engine))["reason"] == "complaints"


async def test_rolling_back_without_a_previous_version_is_refused(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    with pytest.raises(ArtefactError, match="no previous version"):
        await operator_commands.rollback(engine, registry, actor="ann", reason="curious")


async def test_a_trial_that_was_never_written_down_is_ended(
    engine: AsyncEngine, registry: ArtefactRegistry, rollout: Rollouts
) -> None:
    registry.start_canary(variant(registry, GOOD), 0.1)

    await rollout.advance()

    assert registry.canary() is None
    assert (await _last(engine))["action"] == "classifier.canary_stopped"


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="share is 1"):
        RolloutSettings(share=1.0)
    with pytest.raises(ValueError, match="patience is 0"):
        RolloutSettings(patience=0)
    with pytest.raises(ValueError, match="days is 0"):
        RolloutSettings(days=0.0)
