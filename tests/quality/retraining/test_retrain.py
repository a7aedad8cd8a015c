"""Retraining: one run at a time, better models promoted and worse ones refused, every transition a row."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import like_of
from classifier.local.cells import prior_table
from classifier.model.outcome_model import TrainingWindow
from classifier.registry.artefact import load_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry, Canary
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, retrain_runs, training_rows
from quality.comparison.association import level_of
from quality.monitor.watches import tenants_changes
from quality.retraining.retrain import RetrainResult, retrain
from quality.retraining.runs import Busy, LeaseLostError, RetrainRuns, Run
from quality.retraining.training_process import TrainingProcessError, run_training_process
from quality.store.queries import record_audit, reset_labels
from quality.verification.training_rows import TRAINED_ON, data_hash, export_rows
from tests.gateway.gateway_only import without_extras
from tests.quality.loop_world import rows
from tests.quality.retraining.tiny_classifier import (
    SETTINGS,
    experience_row,
    model_in,
    prompt_about,
    store_experience,
)
from tests.support.served import run_at_start

pytestmark = pytest.mark.processes

# Tiers whose fingerprints are not known.
FOUR = [""] * 4


async def _retrain(engine: AsyncEngine, registry: ArtefactRegistry, **options: Any) -> RetrainResult:
    return await retrain(engine, registry, SETTINGS, trigger="cli", **options)


async def _actions(engine: AsyncEngine) -> list[str]:
    return [row["action"] for row in await rows(engine, audit_events)]


async def _statuses(engine: AsyncEngine) -> dict[str, str]:
    return {row["version"]: row["status"] for row in await rows(engine, classifier_versions)}


async def test_a_better_candidate_is_put_on_trial_against_the_incumbent(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    incumbent = registry.current().name
    await store_experience(engine, model_in(registry), 1500)

    result = await _retrain(engine, registry)

    assert result.outcome == "canary", result.reason
    assert registry.current().name == incumbent
    assert registry.canary() == Canary(version=str(result.candidate), share=0.1)
    assert await _statuses(engine) == {incumbent: "promoted", result.candidate: "canary"}
    assert await _actions(engine) == [
        "retrain.started",
        "retrain.exported",
        "retrain.trained",
        "retrain.accepted",
        "classifier.canary_started",
    ]
    [run] = await rows(engine, retrain_runs)
    assert (run["status"], run["classifier_version"], run["trigger"]) == ("done", result.candidate, "cli")
    assert run["metrics"]["gain"][1] > 0


async def test_a_candidate_that_learned_nothing_is_refused_with_the_reason(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    incumbent = registry.current().name
    await store_experience(engine, model_in(registry), 400, informative=False)

    result = await _retrain(engine, registry)

    assert result.outcome == "refused"
    assert "do not certainly depend on their prompts" in result.reason
    assert registry.current().name == incumbent
    assert await _statuses(engine) == {incumbent: "promoted", result.candidate: "refused"}
    assert (await _actions(engine))[-1] == "classifier.refused"


async def test_each_look_at_labels_is_held_to_a_lower_level_until_a_candidate_is_accepted_or_labels_are_reset(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    runs, looks = RetrainRuns(engine, 60.0), []
    for number in range(3):
        await store_experience(engine, model_in(registry), 60, informative=False, seed=number)
        looks.append(await runs.judged())
        result = await _retrain(engine, registry)
        assert f"at most {level_of(number + 1):.4f} is allowed" in result.reason
    assert looks == [0, 1, 2]
    now = time.time()
    await record_audit(engine, at=now, actor="x", action="retrain.accepted", subject="v", reason="better")
    assert await runs.judged() == 0
    await _retrain(engine, registry)
    await reset_labels(engine, actor="x", reason="new", now=time.time())
    assert await runs.judged() == 0


async def test_too_little_evidence_is_refused_and_the_same_data_again_are_nothing_new(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 40)

    first, again = await _retrain(engine, registry), await _retrain(engine, registry)

    assert first.outcome == "refused"
    assert "newer rows; a comparison needs at least 50" in first.reason
    assert (again.outcome, again.candidate) == ("nothing new", None)
    assert len(await rows(engine, retrain_runs)) == 2

    await store_experience(engine, model_in(registry), 1, seed=2)
    assert (await _retrain(engine, registry)).outcome == "refused"


async def test_every_new_row_trains_and_is_compared_on_by_a_model_that_has_not_seen_it(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 80)

    result = await _retrain(engine, registry)

    manifest = load_manifest(registry.folder(str(result.candidate)))
    assert manifest.counts == {"labels": 80}
    assert (manifest.parent, manifest.catalogue_fingerprint) == (result.incumbent, "serving")
    assert result.judgement is not None
    assert result.judgement["new_rows"] == 80


async def test_each_version_is_stored_with_the_slope_of_its_probabilities_on_rows_that_it_had_not_seen(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    """RT-06."""
    await store_experience(engine, model_in(registry), 160)

    result = await _retrain(engine, registry)

    [stored] = [row["metrics"] for row in await rows(engine, classifier_versions) if row["version"] == result.candidate]
    by_tier = {one["tier"]: one for one in stored["calibration"]}
    assert by_tier
    assert any(one["slope"] is not None for one in by_tier.values())
    for one in by_tier.values():
        if one["slope"] is not None:
            value, low, high = one["slope"]
            assert low < value < high


async def test_training_rows_of_the_incumbent_are_not_used_for_comparison(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 80)
    manifest = model_in(registry).manifest
    window = TrainingWindow(start=None, end="1970-01-01T00:16:40+00:00", source=TRAINED_ON)

    whole = (await export_rows(engine, manifest, FOUR))["compare"]
    later = await export_rows(engine, msgspec.structs.replace(manifest, training_window=window), FOUR)

    assert whole.all()
    assert 0 < later["compare"].sum() < 80
    assert np.array_equal(later["compare"], later["at"] > 1001.0)


async def test_an_alarm_of_a_tier_dates_a_change_that_the_judgement_and_the_audit_name(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 80)
    since = float(np.median((await export_rows(engine, model_in(registry).manifest, FOUR))["at"]))
    alarms = [
        {"stream": "tier 1, familiar prompts", "since": 3.0},
        {"stream": "tier 1, familiar prompts", "since": since},
        {"stream": "tier 2, familiar prompts"},
        {"stream": "tier 3, unfamiliar prompts", "since": 5.0},
        {"stream": "EXPERT prompts", "since": 6.0},
    ]
    async with engine.begin() as connection:
        await connection.execute(
            insert(audit_events),
            [
                {"created_at": float(i), "actor": "monitor", "action": "quality.alarm", "subject": f"s{i}",
                 "reason": "", "details": alarm}
                for i, alarm in enumerate(alarms)
            ],
        )  # fmt: skip

    result = await _retrain(engine, registry)

    assert await tenants_changes(engine) == {None: {1: since}}
    assert result.judgement is not None
    [(tier, before)] = result.judgement["outdated"].items()
    assert (int(tier), 0 < before < 80) == (1, True)
    assert f"{before} new rows are from before tier 1's answers changed" in result.reason


async def test_labels_from_before_a_reset_train_nothing(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    await store_experience(engine, model_in(registry), 60)
    await reset_labels(engine, actor="ann", reason="a wrong judge", now=1040.0)

    # Any later process reads the same database.
    result = await _retrain(engine, registry)

    assert result.judgement is not None
    assert load_manifest(registry.folder(str(result.candidate))).counts == {"labels": 19}
    await reset_labels(engine, actor="ann", reason="all of it", now=2000.0)
    assert (await _retrain(engine, registry)).outcome == "nothing new"


async def test_a_candidate_whose_labels_are_reset_while_it_trains_is_refused(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 1500)

    async def train(folder: Path, on_progress: Any, *, timeout_seconds: float) -> None:
        await run_training_process(folder, on_progress, timeout_seconds=timeout_seconds)
        await reset_labels(engine, actor="ann", reason="a wrong judge", now=5000.0)

    result = await _retrain(engine, registry, train=train)

    assert result.outcome == "refused"
    assert "have been reset meanwhile" in result.reason


async def test_without_stored_outcomes_nothing_is_trained(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    result = await _retrain(engine, registry)

    assert result.outcome == "nothing new"
    assert "no verified outcome" in result.reason


async def test_a_double_start_is_one_run(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    await store_experience(engine, model_in(registry), 40)

    results = await asyncio.gather(*(_retrain(engine, registry) for _ in range(3)))

    assert sorted(result.outcome for result in results) == ["busy", "busy", "refused"]
    assert len(await rows(engine, retrain_runs)) == 1


async def test_a_run_that_was_stopped_is_resumed_as_the_same_run(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 40)
    started = asyncio.Event()
    stopped = asyncio.create_task(_retrain(engine, registry, on_progress=lambda step, share: started.set()))
    await started.wait()
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    [unfinished] = await rows(engine, retrain_runs)

    result = await _retrain(engine, registry)

    assert unfinished["status"] == "running"
    assert (result.run_id, result.outcome) == (unfinished["run_id"], "refused")
    assert "retrain.resumed" in await _actions(engine)


async def test_a_failed_training_leaves_the_incumbent_and_says_what_happened(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 40)
    (registry.current() / "weights.safetensors").write_bytes(b"damaged")

    with pytest.raises(TrainingProcessError, match=r"weights\.safetensors"):
        await _retrain(engine, registry)

    [run] = await rows(engine, retrain_runs)
    assert run["status"] == "failed"
    assert "weights.safetensors" in run["error"]
    assert (await _actions(engine))[-1] == "retrain.failed"


async def test_an_installation_without_extras_retrains(
    engine: AsyncEngine, registry: ArtefactRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training process can import none of the extras' packages."""
    for name, value in without_extras(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    await store_experience(engine, model_in(registry), 1500)

    result = await _retrain(engine, registry)

    assert result.outcome == "canary", result.reason


async def test_training_that_takes_too_long_is_killed(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    await store_experience(engine, model_in(registry), 40)

    with pytest.raises(TrainingProcessError, match="longer than"):
        await retrain(engine, registry, msgspec.structs.replace(SETTINGS, timeout_seconds=0.01), trigger="cli")


async def test_training_runs_in_a_niced_process_of_its_own(
    engine: AsyncEngine, registry: ArtefactRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_experience(engine, model_in(registry), 40)
    asked, steps = tmp_path / "asked", list[str]()
    # Noted, not done: at its low priority it would take minutes on a busy machine.
    noting = f"import os\n\nos.nice = lambda by: open({str(asked)!r}, 'a').write(f'{{by}};')\n"
    at_start = run_at_start(tmp_path / "site", noting)
    for name, value in at_start.items():
        monkeypatch.setenv(name, value)

    await _retrain(engine, registry, on_progress=lambda step, share: steps.append(step))

    assert steps == ["reading the rows", "training", "comparing with the incumbent", "done"]
    assert asked.read_text() == "10;"


async def test_one_of_two_runners_gets_the_run_and_an_expired_lease_passes_on(
    any_engine: AsyncEngine,
) -> None:
    first, second = RetrainRuns(any_engine, 100.0), RetrainRuns(any_engine, 100.0)
    held = await first.acquire("cron", 1000.0)
    assert isinstance(held, Run)

    busy = await second.acquire("cli", 1050.0)
    assert isinstance(busy, Busy)
    await first.advance(held, "exported", 1050.0, {"data_hash": "abc"})
    assert isinstance(await second.acquire("cli", 1149.0), Busy)
    taken = await second.acquire("cli", 1150.0)

    assert isinstance(taken, Run)
    assert (taken.run_id, taken.step, taken.data_hash) == (held.run_id, "exported", "abc")
    with pytest.raises(LeaseLostError):
        await first.renew(held, 1151.0)


async def test_a_runner_that_lost_its_lease_while_training_writes_nothing_more(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    await store_experience(engine, model_in(registry), 40)
    training = asyncio.Event()
    run = asyncio.create_task(_retrain(engine, registry, on_progress=lambda step, share: training.set()))
    await training.wait()
    async with engine.begin() as connection:
        await connection.execute(update(retrain_runs).values(owner="somebody else"))

    with pytest.raises(LeaseLostError):
        await run

    [row] = await rows(engine, retrain_runs)
    assert (row["status"], row["owner"], row["step"]) == ("running", "somebody else", "exported")


async def test_outcomes_of_a_changed_tier_are_not_exported_and_all_others_are(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    model = model_in(registry)
    row = experience_row(model, "probe", "Tell me about gamma", True) | {
        "no_worse": [True, False, True, True],
        "tiers": ["a", "b", "c", "d"],
    }
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows).values(**row, created_at=1.0))

    async def exported(*tiers: str) -> list[list[float]]:
        found: list[list[float]] = (await export_rows(engine, model.manifest, tiers))["no_worse"].tolist()
        return found

    assert await exported("a", "b", "c", "d") == [[1.0, 0.0, 1.0]]
    [[first, second, third]] = await exported("a", "another", "c", "d")
    assert (first, third) == (1.0, 1.0)
    assert np.isnan(second)
    assert await exported("a", "b", "c", "another") == []


async def test_rows_are_exported_oldest_first_and_those_of_another_encoder_stay_out(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    model = model_in(registry)
    await store_experience(engine, model, 200)
    before = await export_rows(engine, model.manifest, FOUR)
    foreign = experience_row(model, "foreign", "Tell me about gamma", True) | {"feature_spec": "another encoder"}
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows).values(**foreign, created_at=5000.0))
        # As if these had been verified long before the others.
        await connection.execute(
            update(training_rows).where(training_rows.c.training_row_id > 150).values(created_at=1.0)
        )

    after = await export_rows(engine, model.manifest, FOUR)

    order = [*range(150, 200), *range(150)]
    assert len(after["at"]) == 200
    assert np.array_equal(after["embedding"], before["embedding"][order])


async def test_the_data_hash_sees_every_row_and_what_they_are_trained_on(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    model = model_in(registry)
    await store_experience(engine, model, 20)
    before = await export_rows(engine, model.manifest, FOUR)
    await store_experience(engine, model, 1, seed=2)
    after = await export_rows(engine, model.manifest, FOUR)

    hashes = {data_hash(before, "v1"), data_hash(before, "v2"), data_hash(after, "v1")}

    assert len(hashes) == 3
    assert data_hash(before, "v1") in hashes


def test_seeding_gives_an_empty_registry_the_shipped_version_once(shipped: Path, tmp_path: Path) -> None:
    registry = ArtefactRegistry(tmp_path / "registry")

    assert registry.seed(shipped).name == shipped.name
    assert registry.seed(tmp_path / "absent").name == shipped.name
    assert registry.versions() == [shipped.name]


@pytest.mark.parametrize("tiers", [2, 3, 6])
async def test_catalogues_of_other_numbers_of_tiers_than_the_shipped_version_are_learned(
    engine: AsyncEngine, registry: ArtefactRegistry, tiers: int
) -> None:
    """Of the tier below the strongest: wrong about gamma, right about delta, which is not what the prior says."""
    model, chance = model_in(registry), random.Random(0)
    made = []
    for i in range(200):
        topic = chance.choice(["gamma", "delta"])
        no_worse: list[bool | None] = [None] * tiers
        no_worse[-2:] = [topic == "delta", True]
        row = experience_row(model, f"r{i}", prompt_about(topic, chance), True)
        weights = [float(tier == tiers - 2) for tier in range(tiers)]
        made.append({**row, "no_worse": no_worse, "weights": weights, "created_at": 1000.0 + i})
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)
    settings = msgspec.structs.replace(SETTINGS, models={"serving": [f"model {k}" for k in range(tiers)]})

    result = await retrain(engine, registry, settings, trigger="cli")

    assert result.outcome == "canary", result.reason
    candidate = load_artefact(registry.folder(str(result.candidate)), "serving")
    predictor = ClassPredictor(candidate, prior_table(like_of(tiers)))
    assert (predictor.kind, predictor.tiers, candidate.manifest.tiers) == ("measured", tiers, tiers)
    assert predictor.table[1, -1] < 0.5 < 0.9 < predictor.table[2, -1]
    other = ClassPredictor(candidate, prior_table(like_of(tiers + 1)))
    assert (other.kind, other.tiers) == ("prior", tiers + 1), "of another number of tiers it knows nothing"


async def test_a_catalogue_of_one_tier_has_nothing_to_learn(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    await store_experience(engine, model_in(registry), 60)
    settings = msgspec.structs.replace(SETTINGS, models={"serving": ["only"]})
    result = await retrain(engine, registry, settings, trigger="cli")
    assert (result.outcome, result.candidate) == ("nothing new", None)


async def test_a_version_of_outcome_heads_is_followed_by_one_that_has_learned_by_class(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    """An incumbent that an earlier release trained for this very catalogue serves by its prior until then."""
    shipped = registry.current()
    heads = msgspec.structs.replace(load_manifest(shipped), version="v1-heads", catalogue_fingerprint="serving")
    save_artefact(registry.root, heads, load_model_tensors(shipped))
    registry.promote("v1-heads")
    await store_experience(engine, model_in(registry), 300)

    result = await _retrain(engine, registry)

    assert (result.outcome, result.incumbent) == ("canary", "v1-heads"), result.reason
    assert load_artefact(registry.folder(str(result.candidate)), "serving").kind == "measured"
