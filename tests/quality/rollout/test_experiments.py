"""A/B experiments end on evidence: a planted effect is found, and none where there is none (QM-11)."""

from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, Split
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.audit import audit_events
from migrations.tables.quality import experiments
from quality.comparison.paired_outcomes import Paired
from quality.rollout.experiments import ExperimentError, Experiments, Plan, concluded
from quality.store.queries import insert_records
from tests.quality.loop_world import record, rows
from tests.quality.retraining.tiny_classifier import model_in
from tests.quality.rollout.rollout_world import GOOD, break_file, store_probes, variant

ANN = {"actor": "ann", "reason": "which is better?"}


@pytest.fixture
def running(engine: AsyncEngine, registry: ArtefactRegistry) -> Experiments:
    return Experiments(engine, registry, clock=lambda: 5000.0)


def plan(a: Arm, b: Arm, **changes: Any) -> Plan:
    return msgspec.structs.replace(Plan(share=0.2, a=a, b=b, tiers=4), **changes)


async def _last(engine: AsyncEngine, table: Any = experiments) -> dict[str, Any]:
    return (await rows(engine, table))[-1]


async def test_a_planted_effect_between_two_tiers_is_found_and_ends_the_experiment(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    started = await running.start("cheap?", plan(Arm(tier=3), Arm(tier=1)), **ANN)
    assert (split := registry.experiment()) is not None
    assert (split.experiment_id, split.share, split.tiers) == (started, 0.2, [3, 1])
    assert await running.advance() is None

    # Tier 1 fails on every second of them.
    await store_probes(engine, model_in(registry), 60, 5001.0)
    reason = await running.advance()

    row = await _last(engine)
    assert (row["status"], row["metrics"]["winner"], row["reason"]) == ("done", "a", reason)
    assert "tier 3 is better than tier 1 on 60 probes" in row["reason"]
    assert registry.experiment() is None
    assert [event["action"] for event in await rows(engine, audit_events)] == ["experiment.started", "experiment.done"]


async def test_where_both_arms_are_alike_nothing_is_found(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    arms = Arm(version=registry.current().name), Arm(version=variant(registry, GOOD))
    await running.start("A/A", plan(*arms, most_probes=50), **ANN)
    await store_probes(engine, model_in(registry), 50, 5001.0)

    assert "no difference was found on 50 probes" in str(await running.advance())
    assert (await _last(engine))["metrics"]["winner"] is None


def test_a_difference_counts_from_the_evidence_that_half_the_level_asks_for() -> None:
    """Each side has half: at a level of 5%, evidence of 40."""
    tiers = plan(Arm(tier=1), Arm(tier=2), level=0.05)
    assert concluded(tiers, Paired(probes=10, benefit=39.9, harm=39.9)) is None
    for winner, found in (("b", Paired(probes=10, benefit=40.1)), ("a", Paired(probes=10, harm=40.1))):
        verdict = concluded(tiers, found)
        assert verdict is not None
        assert verdict[0] == winner


async def test_requests_of_each_arm_are_counted_with_their_cost(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    started = await running.start("cost", plan(Arm(tier=1), Arm(tier=2)), **ANN)
    made = []
    for number, (arm, cost) in enumerate([("a", 1.0), ("a", 3.0), ("b", 5.0), (None, 100.0)]):
        one = record(f"req-{number}", created_at=5001.0, cost_usd=cost)
        given = {"experiment_id": started if arm else None, "arm": arm}
        inputs = msgspec.structs.replace(one.decision.inputs, **given)
        made.append(msgspec.structs.replace(one, decision=msgspec.structs.replace(one.decision, inputs=inputs)))
    async with engine.begin() as connection:
        await insert_records(connection, made)

    await running.advance()

    found = (await _last(engine))["metrics"]
    assert [(found[arm]["requests"], found[arm]["cost_usd"]) for arm in ("a", "b")] == [(2, 2.0), (1, 5.0)]


async def test_one_runs_at_a_time_and_may_be_stopped(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    started = await running.start("first", plan(Arm(tier=1), Arm(tier=2)), **ANN)
    with pytest.raises(ExperimentError, match="is running; stop it first"):
        await running.start("second", plan(Arm(tier=1), Arm(tier=3)), **ANN)
    with pytest.raises(ArtefactError, match="no artefact version 'v9'"):
        await running.start("third", plan(Arm(tier=1), Arm(version="v9")), **ANN)

    assert not await running.stop("another", **ANN)
    assert await running.stop(started, **ANN)

    assert ((await _last(engine))["status"], registry.experiment()) == ("stopped", None)
    assert (await _last(engine, audit_events))["action"] == "experiment.stopped"


async def test_an_arm_that_cannot_serve_any_more_ends_it_with_the_reason(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    await running.start("broken", plan(Arm(tier=1), Arm(version=variant(registry, GOOD))), **ANN)
    break_file(registry.folder(GOOD))

    await running.advance()

    row = await _last(engine)
    assert (row["status"], registry.experiment()) == ("stopped", None)
    assert "changed or cut short" in row["reason"]


async def test_the_pointer_is_brought_to_what_the_rows_say(
    engine: AsyncEngine, registry: ArtefactRegistry, running: Experiments
) -> None:
    await running.start("first", plan(Arm(tier=1), Arm(tier=2)), **ANN)
    split = registry.experiment()
    assert split is not None
    registry.set_experiment(None)
    await running.advance()
    assert registry.experiment() == split

    await running.stop(split.experiment_id, **ANN)
    registry.set_experiment(split)
    await running.advance()
    assert registry.experiment() is None


def test_a_promotion_leaves_the_experiment_alone(registry: ArtefactRegistry) -> None:
    split = Split(experiment_id="x", share=0.5, a=Arm(tier=1), b=Arm(tier=2))
    registry.set_experiment(split)
    registry.start_canary(variant(registry, GOOD), 0.1)
    registry.promote(GOOD)
    assert (registry.experiment(), registry.canary()) == (split, None)
    registry.rollback()
    assert registry.experiment() == split
