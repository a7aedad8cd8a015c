"""What a rollout and an experiment write down at each step, whose rows they change, and where the pointer then is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.experiment_split import Arm
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.registry import ArtefactRegistry, Canary
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, experiments, rollouts, verifications
from quality.comparison.paired_outcomes import Paired
from quality.rollout import operator_commands
from quality.rollout.experiments import Experiments, Plan, Results, concluded, ending_of
from quality.rollout.guardrails import Guarded, Guardrails
from quality.rollout.rollout import Evidence, RolloutEvidence, Rollouts, RolloutSettings
from quality.rollout.versions import registry_transaction
from tests.quality.loop_world import record, rows, store_request
from tests.quality.rollout.rollout_world import BAD, GOOD, break_file, variant

NOW = 5000.0
BOTH = RolloutSettings(share=0.2)
ORDER = {"actor": "ann", "reason": "curious"}


class World:
    """Rollouts at the time `now`; the `evidence` is as a test says, and `meanwhile` happens while it is gathered."""

    def __init__(self, engine: AsyncEngine, registry: ArtefactRegistry, patch: pytest.MonkeyPatch) -> None:
        self.engine, self.registry, self.now = engine, registry, NOW
        self.incumbent = registry.current().name
        self.rollouts = Rollouts(engine, registry, clock=lambda: self.now)
        self.evidence, self.meanwhile = Evidence(), list[Callable[[], Any]]()

        async def of(*given: Any) -> Evidence:
            for happens in self.meanwhile:
                await happens()
            return self.evidence

        patch.setattr(RolloutEvidence, "of", of)

    async def begin(self, version: str, **more: Any) -> None:
        async with registry_transaction(self.engine) as connection:
            await self.rollouts.begin(connection, version, self.incumbent, BOTH, **ORDER, **more)

    async def end(self, reason: str = "enough") -> Any:
        async with registry_transaction(self.engine) as connection:
            return await self.rollouts.end(connection, "stopped", actor="bob", reason=reason)

    async def row(self, table: Any = rollouts, place: int = -1) -> dict[str, Any]:
        return (await rows(self.engine, table))[place]

    async def events(self) -> list[tuple[str, str, str, str]]:
        events = await rows(self.engine, audit_events)
        return [tuple(event[name] for name in ("actor", "action", "subject", "reason")) for event in events]

    async def statuses(self) -> dict[str, str]:
        return {row["version"]: row["status"] for row in await rows(self.engine, classifier_versions)}


@pytest.fixture
def world(engine: AsyncEngine, registry: ArtefactRegistry, monkeypatch: pytest.MonkeyPatch) -> World:
    variant(registry, GOOD), variant(registry, BAD)
    return World(engine, registry, monkeypatch)


async def test_a_canary_is_written_down_as_it_begins_and_as_it_ends(world: World) -> None:
    await world.begin(GOOD)
    begun = await world.row()
    expected = {
        "version": GOOD, "incumbent": world.incumbent, "stage": "canary", "status": "running", "share": 0.2,
        "settings": msgspec.to_builtins(BOTH), "evidence": None, "reason": "curious", "created_at": NOW,
        "promoted_at": None, "finished_at": None,
    }  # fmt: skip
    assert {name: begun[name] for name in expected} == expected
    assert await world.statuses() == {world.incumbent: "promoted", GOOD: "canary"}
    paths = {row["version"]: row["path"] for row in await rows(world.engine, classifier_versions)}
    assert paths == {name: str(world.registry.root / name) for name in (world.incumbent, GOOD)}
    assert (await world.row(audit_events))["details"] == {"share": 0.2, "incumbent": world.incumbent}
    assert (await world.row(audit_events))["created_at"] == NOW
    running = await world.rollouts.running()
    assert running is not None
    world.rollouts.project(msgspec.structs.replace(running, share=0.0))
    assert world.registry.canary() is None, "one that is promoted at once is no canary"
    world.now += 9
    ended = await world.end()
    assert (ended.version, ended.stage, ended.created_at) == (GOOD, "canary", NOW)
    row = await world.row()
    assert (row["status"], row["reason"], row["finished_at"]) == ("stopped", "enough", NOW + 9)
    assert await world.statuses() == {world.incumbent: "promoted", GOOD: "refused"}
    assert await world.events() == [
        ("ann", "classifier.canary_started", GOOD, "curious"), ("bob", "classifier.canary_stopped", GOOD, "enough")
    ]  # fmt: skip
    assert await world.end() is None
    assert len(await world.events()) == 2


async def test_a_watch_begins_with_a_promotion_and_its_end_leaves_the_version(world: World) -> None:
    await world.begin(GOOD, stage="watch")
    row = await world.row()
    assert (row["stage"], row["promoted_at"]) == ("watch", NOW)
    assert await world.statuses() == {world.incumbent: "retired", GOOD: "promoted"}
    await world.end()
    assert await world.statuses() == {world.incumbent: "retired", GOOD: "promoted"}
    assert [event[1] for event in await world.events()] == ["classifier.promoted", "classifier.watch_ended"]


async def test_a_rollout_takes_the_place_of_another(world: World) -> None:
    for version in (GOOD, BAD, BAD):
        await world.begin(version)
    assert [row["status"] for row in await rows(world.engine, rollouts)] == ["superseded", "superseded", "running"]
    assert [row["reason"] for row in await rows(world.engine, rollouts)] == [
        f"{BAD} takes its place", "curious", "curious"
    ]  # fmt: skip
    assert [event[1:3] for event in await world.events()] == [
        ("classifier.canary_started", GOOD), ("classifier.canary_stopped", GOOD), ("classifier.canary_started", BAD),
        ("classifier.canary_started", BAD),
    ]  # fmt: skip


async def test_while_it_goes_on_the_pointer_follows_the_row_from_any_state(world: World) -> None:
    await world.begin(GOOD)
    world.registry.promote(BAD)
    world.registry.promote(GOOD)
    assert (said := await world.rollouts.advance()) is not None
    assert said.act == "go on"
    assert (world.registry.current().name, world.registry.canary()) == (
        world.incumbent, Canary(version=GOOD, share=0.2)
    )  # fmt: skip
    assert ((await world.row())["reason"], (await world.row())["evidence"]) == (
        said.reason, msgspec.to_builtins(Evidence())
    )  # fmt: skip
    world.registry.stop_canary()
    world.registry.start_canary(GOOD, 0.7)
    await world.rollouts.advance()
    assert world.registry.canary() == Canary(version=GOOD, share=0.2)
    world.evidence = Evidence(paired=Paired(probes=100))
    assert (said := await world.rollouts.advance()) is not None
    assert (said.act, world.registry.current().name, world.registry.canary()) == ("promote", GOOD, None)
    row = await world.row()
    assert (row["stage"], row["status"], row["promoted_at"], row["reason"]) == ("watch", "running", NOW, said.reason)
    world.registry.promote(world.incumbent)
    await world.rollouts.advance()
    assert world.registry.current().name == GOOD
    world.evidence = Evidence(paired=Paired(probes=500))
    world.now += 1
    world.registry.promote(world.incumbent)
    assert (said := await world.rollouts.advance()) is not None
    row = await world.row()
    assert (said.act, row["status"], row["finished_at"]) == ("keep", "kept", NOW + 1)
    assert world.registry.current().name == GOOD
    assert row["evidence"] == msgspec.to_builtins(world.evidence)
    assert [event[1:] for event in await world.events()][1:] == [
        ("classifier.promoted", GOOD, "no evidence of harm on 100 probes (gain +0.0000, worse +0.0000, cost +0.0000)"),
        ("classifier.kept", GOOD, said.reason),
    ]
    assert (await world.row(audit_events))["details"] == msgspec.to_builtins(world.evidence)


@pytest.mark.parametrize("stage", ["canary", "watch"])
async def test_a_version_that_does_harm_is_rolled_back_with_its_evidence(world: World, stage: Any) -> None:
    await world.begin(GOOD, stage=stage)
    await world.rollouts.advance()
    world.evidence, world.now = Evidence(paired=Paired(harm=1e9)), NOW + 7
    assert (said := await world.rollouts.advance()) is not None
    row = await world.row()
    assert (row["status"], row["reason"], row["finished_at"]) == ("rolled_back", said.reason, NOW + 7)
    assert row["evidence"] == msgspec.to_builtins(world.evidence)
    assert await world.statuses() == {world.incumbent: "promoted", GOOD: "rolled_back"}
    assert (world.registry.current().name, world.registry.canary()) == (world.incumbent, None)
    assert (await world.events())[-1] == ("rollout", "classifier.rolled_back", GOOD, said.reason)
    versions = {row["version"]: row for row in await rows(world.engine, classifier_versions)}
    assert versions[world.incumbent]["reason"] == (
        f"rolled back to: {said.reason}" if stage == "watch" else "was serving when first seen"
    )


async def test_a_canary_that_nothing_decided_ends_and_the_incumbent_stays(world: World) -> None:
    await world.begin(GOOD)
    await world.rollouts.advance()
    world.now += 28 * 86_400
    world.evidence = Evidence(paired=Paired(probes=3))
    assert (said := await world.rollouts.advance()) is not None
    row = await world.row()
    assert (said.act, row["status"], row["finished_at"]) == ("end", "stopped", world.now)
    seen = msgspec.to_builtins(world.evidence)
    assert (row["evidence"], (await world.row(audit_events))["details"]) == (seen, seen)
    assert (world.registry.current().name, world.registry.canary()) == (world.incumbent, None)
    assert (await world.events())[-1] == ("rollout", "classifier.canary_stopped", GOOD, said.reason)


async def test_what_another_replica_decided_meanwhile_is_not_decided_again(world: World) -> None:
    await world.begin(GOOD)
    world.evidence = Evidence(paired=Paired(harm=1e9))
    world.meanwhile = [world.end]
    assert await world.rollouts.advance() is None
    assert await world.statuses() == {world.incumbent: "promoted", GOOD: "refused"}
    await world.begin(GOOD)
    world.meanwhile = [lambda: world.begin(BAD)]
    assert await world.rollouts.advance() is None
    assert (await world.statuses())[GOOD] == "refused"
    assert [event[1] for event in await world.events()].count("classifier.rolled_back") == 0


async def test_a_promotion_behind_its_back_ends_a_rollout(world: World) -> None:
    await world.begin(GOOD)
    world.registry.promote(BAD)
    assert await world.rollouts.advance() is None
    assert ((await world.row())["status"], world.registry.current().name) == ("superseded", BAD)
    assert (await world.events())[-1] == (
        "rollout", "classifier.canary_stopped", GOOD, f"{BAD} was promoted behind its back"
    )  # fmt: skip


async def test_a_trial_that_the_database_does_not_know_ends_once(world: World) -> None:
    world.registry.start_canary(GOOD, 0.1)
    for _ in range(2):
        assert await world.rollouts.advance() is None
    assert world.registry.canary() is None
    assert await world.events() == [
        ("rollout", "classifier.canary_stopped", GOOD, "it was begun, but never written down")
    ]
    world.registry.start_canary(GOOD, 0.1)
    assert await operator_commands.stop_canary(world.engine, world.registry, **ORDER) == GOOD
    assert (await world.events())[1:] == [("ann", "classifier.canary_stopped", GOOD, "curious")]


async def test_an_operators_commands_are_written_down_with_the_prior(world: World) -> None:
    engine, registry, prior = world.engine, world.registry, [[0.5, 1.0]] * 4
    await operator_commands.start_canary(engine, registry, GOOD, 0.3, **ORDER, prior=prior)
    assert registry.canary() == Canary(version=GOOD, share=0.3)
    assert (await world.row())["settings"] == msgspec.to_builtins(
        RolloutSettings(share=0.3, promotes=False, prior=prior)
    )
    assert await operator_commands.stop_canary(engine, registry, **ORDER) == GOOD
    assert len(await world.events()) == 2
    assert await operator_commands.promote(engine, registry, BAD, **ORDER, prior=prior) == world.incumbent
    assert (await world.row())["settings"] == msgspec.to_builtins(RolloutSettings(prior=prior))
    assert await operator_commands.promote(engine, registry, BAD, **ORDER) == BAD
    assert ((await world.row())["status"], registry.current().name) == ("superseded", BAD)
    assert (await world.events())[-1] == ("ann", "classifier.watch_ended", BAD, "curious")
    assert await operator_commands.rollback(engine, registry, **ORDER, now=77.0) == world.incumbent
    event = await world.row(audit_events)
    assert (event["created_at"], event["action"], event["subject"]) == (77.0, "classifier.rolled_back", world.incumbent)
    assert event["details"] == {"retired": BAD}
    versions = {row["version"]: row for row in await rows(engine, classifier_versions)}
    assert (versions[world.incumbent]["reason"], versions[BAD]["retired_at"]) == ("rolled back to: curious", 77.0)
    for command in (
        operator_commands.promote(engine, registry, "v9", **ORDER),
        operator_commands.start_canary(engine, registry, "v9", 0.1, **ORDER),
    ):
        with pytest.raises(ArtefactError, match="no artefact version 'v9'"):
            await command
    with pytest.raises(ArtefactError, match="share"):
        await operator_commands.start_canary(engine, registry, GOOD, 1.5, **ORDER)
    assert (len(await rows(engine, rollouts)), registry.current().name) == (2, world.incumbent)


async def test_a_version_that_cannot_be_loaded_is_broken_and_an_incumbent_a_problem(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    incumbent, settings = registry.current().name, RolloutSettings()
    variant(registry, GOOD)
    evidence = RolloutEvidence(engine, registry)
    first = await evidence.of(GOOD, incumbent, 0.0, settings)
    assert (first.broken, first.problem, first.paired.probes) == (None, None, 0)
    break_file(registry.folder(GOOD))
    assert "changed or cut short" in str((await evidence.of(GOOD, incumbent, 0.0, settings)).broken)
    swapped = await evidence.of(incumbent, GOOD, 0.0, settings)
    assert swapped.broken is None
    assert "changed or cut short" in str(swapped.problem)


async def test_models_are_loaded_once_and_again_when_their_files_change(
    engine: AsyncEngine, registry: ArtefactRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(folder: Path) -> OutcomeModel:
        loaded.append(folder.name)
        return accepted_artefact(folder)

    monkeypatch.setattr("quality.rollout.rollout.accepted_artefact", load)
    incumbent, settings = registry.current().name, RolloutSettings()
    variant(registry, GOOD), variant(registry, BAD)
    evidence = RolloutEvidence(engine, registry)
    for version, again in ((GOOD, [GOOD, incumbent]), (GOOD, []), (BAD, [BAD]), (GOOD, [GOOD])):
        loaded.clear()
        await evidence.of(version, incumbent, 0.0, settings)
        assert loaded == again
    loaded.clear()
    (registry.folder(GOOD) / "note.txt").touch()
    await evidence.of(GOOD, incumbent, 0.0, settings)
    assert loaded == [GOOD]


# -- experiments -------------------------------------------------------------------------------------

PLAN = Plan(share=0.2, a=Arm(tier=1), b=Arm(tier=2), tiers=4, most_probes=100)
GAINS = "{} probes: b gains +0.0100 (worse -0.0200, cost +0.0300)"


@pytest.mark.parametrize(
    ("paired", "winner", "said"),
    [
        ({"benefit": 40.0}, "b", f"tier 2 is better than tier 1 on {GAINS.format(7)}; evidence 40"),
        ({"harm": 40.0}, "a", f"tier 1 is better than tier 2 on {GAINS.format(7)}; evidence 40"),
        ({"benefit": 39.9, "harm": 39.9}, "", ""),
        ({"probes": 100}, None, f"no difference was found on {GAINS.format(100)}"),
        ({"probes": 99}, "", ""),
    ],
)  # fmt: skip
def test_each_side_has_half_the_level_and_patience_ends(paired: dict[str, Any], winner: str | None, said: str) -> None:
    found = Paired(**{"probes": 7, "gain": 0.01, "worse": -0.02, "cost": 0.03} | paired)
    assert concluded(PLAN, found) == (None if winner == "" else (winner, said))
    breached = Guarded(measure="cost", margin=0.5, level=0.01, p_value=0.001)
    results = Results(paired=found, guardrails=[msgspec.structs.replace(breached, p_value=1.0), breached])
    ending = ending_of(PLAN, results)
    assert ending is not None
    assert (ending.status, ending.results.winner, ending.results.breached) == (
        ("stopped", None, "cost") if winner == "" else ("done", winner, None)
    )
    unseen = msgspec.structs.replace(results, guardrails=[], problem="no model", paired=Paired())
    assert ending_of(PLAN, unseen) == ("stopped", unseen, "no model")
    assert ending_of(PLAN, Results()) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"level": 0.0}, "level is 0"), ({"level": 1.0}, "level is 1"), ({"most_probes": 0}, "most_probes is 0"),
        ({"b": Arm(tier=5)}, "an arm is tier 5; there are the tiers 1 to 4"),
        ({"share": 0.0}, "share"),
    ],
)  # fmt: skip
def test_a_plan_without_meaning_is_refused(changes: dict[str, Any], said: str) -> None:
    assert (PLAN.level, Plan(share=0.2, a=Arm(tier=1), b=Arm(tier=4), tiers=4).most_probes) == (0.05, 1000)
    Plan(share=0.2, a=Arm(tier=4), b=Arm(tier=1), tiers=4, level=0.99, most_probes=1)
    with pytest.raises(ValueError, match=said):
        Plan(**msgspec.structs.asdict(PLAN) | changes)


async def test_an_experiment_is_written_down_as_it_begins_goes_on_and_ends(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    now = [NOW]
    running = Experiments(engine, registry, clock=lambda: now[0])
    plan = msgspec.structs.replace(PLAN, guardrails=Guardrails(cost=0.5))
    started = await running.start("which?", plan, **ORDER)
    assert len(started) == 16
    [row] = await rows(engine, experiments)
    assert (row["name"], row["status"], row["reason"], row["created_at"]) == ("which?", "running", "curious", NOW)
    assert row["config"] == msgspec.to_builtins(plan)
    now[0] += 5
    assert await running.advance() is None
    [row] = await rows(engine, experiments)
    assert (row["status"], row["metrics"]) == ("running", msgspec.to_builtins(Results()))
    assert await running.stop(started, **ORDER)
    [row] = await rows(engine, experiments)
    assert (row["status"], row["reason"], row["finished_at"]) == ("stopped", "curious", NOW + 5)
    assert row["metrics"] == msgspec.to_builtins(Results())
    again = await running.start("again", PLAN, **ORDER)
    assert await running.stop(again, **ORDER)
    events = await rows(engine, audit_events)
    assert [(event["action"], event["subject"], event["actor"]) for event in events] == [
        (f"experiment.{what}", subject, "ann") for subject in (started, again) for what in ("started", "stopped")
    ]
    assert [event["details"] for event in events] == [
        msgspec.to_builtins(plan), msgspec.to_builtins(Results()), msgspec.to_builtins(PLAN), None
    ]  # fmt: skip
    assert not await running.stop(started, **ORDER)
    assert await running.advance() is None


async def test_verified_answers_of_its_arms_count(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    running = Experiments(engine, registry, clock=lambda: NOW)
    started = await running.start("which?", PLAN, **ORDER)
    for name, experiment, arm, worse in (("a", started, "a", 0), ("b", started, "b", 1), ("c", "another", "b", 0)):
        made = record(name, created_at=NOW + 1)
        inputs = msgspec.structs.replace(made.decision.inputs, experiment_id=experiment, arm=arm)
        await store_request(
            engine, msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, inputs=inputs))
        )
        row = {
            "request_id": name, "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
            "status": "done", "label": "worse" if worse else "no_worse", "cost_usd": 0.0, "reserved_usd": 0.0,
            "attempts": 1, "created_at": NOW + 2, "finished_at": NOW + 2,
        }  # fmt: skip
        async with engine.begin() as connection:
            await connection.execute(insert(verifications).values(row))
    assert await running.advance() is None
    metrics = (await rows(engine, experiments))[0]["metrics"]
    assert [metrics[arm]["verified"] for arm in ("a", "b")] == [
        {"answers": 1, "worse": 0.0}, {"answers": 1, "worse": 1.0}
    ]  # fmt: skip


async def test_another_replicas_look_counts_and_an_experiment_that_another_ended_is_left(
    engine: AsyncEngine, registry: ArtefactRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Experiments(engine, registry, clock=lambda: NOW)
    started = await running.start("which?", PLAN, **ORDER)
    theirs = Results(looks=2, guardrails=[Guarded(measure="cost", margin=0.5, level=0.01, p_value=0.2)])
    breach = Results(looks=1, guardrails=[Guarded(measure="cost", margin=0.5, level=0.01, p_value=0.001)])

    async def look(self: Experiments, _: Any) -> Results:
        async with engine.begin() as connection:
            await connection.execute(experiments.update().values(metrics=theirs))
        return breach

    monkeypatch.setattr(Experiments, "_results", look)
    assert await running.advance() is None
    assert (await rows(engine, experiments))[0]["metrics"] == msgspec.to_builtins(theirs)

    async def ends(self: Experiments, _: Any) -> Results:
        await running.stop(started, **ORDER)
        return breach

    monkeypatch.setattr(Experiments, "_results", ends)
    assert await running.advance() is None
    assert [event["action"] for event in await rows(engine, audit_events)] == [
        "experiment.started", "experiment.stopped"
    ]  # fmt: skip
    assert registry.experiment() is None


async def test_a_row_that_no_replica_ended_is_ended_by_the_next_breach(
    engine: AsyncEngine, registry: ArtefactRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Experiments(engine, registry, clock=lambda: NOW)
    await running.start("which?", PLAN, **ORDER)
    breached = Guarded(measure="e2e", margin=0.5, level=0.01, p_value=0.001, a=1.0, b=2.0)
    found = Results(looks=1, guardrails=[breached])

    async def look(self: Experiments, _: Any) -> Results:
        return found

    monkeypatch.setattr(Experiments, "_results", look)
    async with engine.begin() as connection:
        # Ended before, and of another id.
        old = (await rows(engine, experiments))[0] | {"experiment_id": "old", "status": "stopped"}
        await connection.execute(insert(experiments).values(old))
    assert await running.advance() == breached.reason
    by_id = {row["experiment_id"]: row for row in await rows(engine, experiments)}
    assert by_id["old"]["metrics"] is None
    (mine,) = [row for name, row in by_id.items() if name != "old"]
    assert (mine["status"], mine["metrics"]["breached"], mine["reason"]) == ("stopped", "e2e", breached.reason)
    assert (await rows(engine, audit_events))[-1]["actor"] == "experiment"
