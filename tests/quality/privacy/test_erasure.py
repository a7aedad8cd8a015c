"""Erasing a user: neither the store nor any classifier version keeps the user's rows, and all others stay."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.encoders.static_encoder import dequantise, quantise
from classifier.model.outcome_model import TrainingWindow
from classifier.registry.artefact import (
    load_artefact,
    load_base,
    load_manifest,
    load_model_tensors,
    model_tensors,
    save_artefact,
)
from classifier.registry.erasure import versions_without
from classifier.registry.registry import ArtefactRegistry
from classifier.training.data.encoded_rows import EncodedRows
from classifier.training.fitting.heads import fit_heads
from migrations.tables.audit import audit_events
from migrations.tables.quality import classifier_versions, rollouts, training_rows
from quality.privacy import erase_user, forget_erased
from quality.rollout.versions import ClassifierVersions
from quality.verification.training_rows import Tensors, encode_prompt, export_rows
from tests.quality.loop_world import rows
from tests.quality.retraining.tiny_classifier import SETTINGS, experience_row, model_in

WORDS = ("table", "window", "garden", "river", "market", "silver", "bridge", "forest", "winter", "morning")


def prompts(key_id: str) -> list[str]:
    topic, words = ("gamma", WORDS) if key_id == "ada" else ("delta", WORDS[::-1])
    return [f"Tell me about {topic} {words[i]} {words[(3 * i + 1) % 10]}" for i in range(10)]


async def learn(engine: AsyncEngine, registry: ArtefactRegistry, *users: str) -> str:
    """Promote a version trained on these users' rows."""
    model = model_in(registry)
    made = [
        experience_row(model, f"{user}-{i}", prompt, i % 2 == 0) | {"key_id": user, "created_at": 1000.0 + i}
        for user in users
        for i, prompt in enumerate(prompts(user))
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)
    return await retrained(engine, registry)


def trained_with_heads(registry: ArtefactRegistry, root: Path, tensors: Tensors) -> Path:
    """Train as earlier releases did: users' embeddings are in the base data and in the memory."""
    old = EncodedRows.from_tensors(load_base(root))
    new = EncodedRows(
        features=tensors["features"],
        embedding=tensors["embedding"],
        word_logits=np.zeros((len(tensors["at"]), old.word_logits.shape[1]), np.float32),
        labels=np.hstack([tensors["no_worse"], np.full((len(tensors["at"]), 4), np.nan, np.float32)]),
        weights=np.ones(len(tensors["at"]), np.float32),
        group=np.full(len(tensors["at"]), -1, np.int32),
        held=np.zeros(len(tensors["at"]), np.bool_),
    )
    rows, parent = old.joined(new), load_manifest(root)
    model = model_tensors(load_model_tensors(root), *fit_heads(rows, seed=0))
    manifest = msgspec.structs.replace(
        parent,
        version=f"v1-heads-{hashlib.sha256(new.embedding.tobytes()).hexdigest()[:12]}",
        parent=parent.version,
        catalogue_fingerprint="serving",
        models=SETTINGS.models,
        training_window=TrainingWindow(start=None, end=None, source="verified traffic"),
        counts={"new": len(new)},
    )
    return save_artefact(registry.root, manifest, model, rows.tensors())


async def retrained(engine: AsyncEngine, registry: ArtefactRegistry) -> str:
    root = (
        registry.folder(registry.versions()[0])
        if registry.previous() is None
        else registry.folder(load_manifest(registry.current()).parent or registry.current().name)
    )
    folder = trained_with_heads(registry, root, await export_rows(engine, load_manifest(root), [""] * 4))
    registry.promote(folder.name)
    await ClassifierVersions(engine).ensure(load_manifest(folder), folder, 1.0)
    return folder.name


def remembers(registry: ArtefactRegistry, version: str, key_id: str) -> bool:
    """Whether the base data or the memory of a version contain an embedding of a user's prompts."""
    model = load_artefact(registry.folder(version))
    base = load_base(registry.folder(version))
    stored = np.vstack([dequantise(base["embedding"].astype(np.int8), base["embedding_scale"]), model.memory.vectors])
    for prompt in prompts(key_id):
        blob = encode_prompt(model, [{"role": "user", "content": prompt}]).embedding
        mine = dequantise(*quantise(np.frombuffer(blob, "<f4")[None, :]))
        if (np.abs(stored - mine).max(axis=1) < 1e-6).any():
            return True
    return False


@pytest.mark.processes
async def test_the_active_version_forgets_the_user_and_keeps_all_others(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    root = registry.current().name
    old = await learn(engine, registry, "ada", "bob")
    assert remembers(registry, old, "ada")

    erased = await erase_user(engine, registry, "ada", actor="ann", reason="she asked", now=2000.0)

    new = erased.replaced[old]
    assert registry.current().name == new
    assert registry.previous() == root
    assert old not in registry.versions()
    assert not remembers(registry, new, "ada")
    assert remembers(registry, new, "bob")
    assert load_manifest(registry.folder(new)).counts["new"] == len(prompts("bob"))
    assert erased.rows.training_rows == len(prompts("ada"))
    assert {row["key_id"] for row in await rows(engine, training_rows)} == {"bob"}
    status = {row["version"]: row["status"] for row in await rows(engine, classifier_versions)}
    assert (status[old], status[new]) == ("retired", "promoted")
    told = {row["action"]: (row["actor"], row["subject"]) for row in await rows(engine, audit_events)}
    assert told["user.erased"] == ("ann", "ada")
    assert told["classifier.erased_from"] == ("ann", new)
    # The lineage continues: the next version has none of the user's rows and counts no other rows twice.
    later = await retrained(engine, registry)
    assert not remembers(registry, later, "ada")
    assert load_manifest(registry.folder(later)).counts["new"] == len(prompts("bob"))


async def test_a_version_trained_only_on_the_erased_user_is_replaced_by_the_root_artefact(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    root = registry.current().name
    old = await learn(engine, registry, "ada")

    await erase_user(engine, registry, "ada", actor="ann", reason="she asked", now=2000.0)

    assert (registry.current().name, registry.previous()) == (root, None)
    assert registry.versions() == [root]
    status = {row["version"]: row["status"] for row in await rows(engine, classifier_versions)}
    assert (status[old], status[root]) == ("retired", "promoted")


async def test_previous_versions_and_canaries_forget_the_user_too(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    first = await learn(engine, registry, "ada")
    second = await learn(engine, registry, "bob")
    registry.promote(first)
    registry.start_canary(second, 0.25)
    trial = {"rollout_id": "r", "version": second, "incumbent": first, "stage": "canary", "status": "running"}
    async with engine.begin() as connection:
        await connection.execute(
            insert(rollouts), trial | {"share": 0.25, "settings": {}, "reason": "", "created_at": 1.0}
        )

    erased = await erase_user(engine, registry, "ada", actor="ann", reason="she asked", now=2000.0)

    canary = registry.canary()
    assert canary is not None
    assert (canary.version, canary.share) == (erased.replaced[second], 0.25)
    assert not any(remembers(registry, version, "ada") for version in registry.versions())
    [rollout] = await rows(engine, rollouts)
    assert (rollout["status"], rollout["version"]) == ("running", erased.replaced[second])
    assert rollout["incumbent"] == erased.replaced[first] == registry.current().name


async def test_a_version_finished_after_the_erasure_is_found_later(
    engine: AsyncEngine, registry: ArtefactRegistry
) -> None:
    model = model_in(registry)
    made = [
        experience_row(model, f"{user}-{i}", prompt, True) | {"key_id": user, "created_at": 1000.0}
        for user in ("ada", "bob")
        for i, prompt in enumerate(prompts(user))
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)
    exported = await export_rows(engine, load_manifest(registry.current()), [""] * 4)
    assert (await erase_user(engine, registry, "ada", actor="ann", reason="", now=2000.0)).replaced == {}
    late = trained_with_heads(registry, registry.current(), exported).name

    replaced = await forget_erased(engine, registry, actor="retention", now=2001.0)

    assert not remembers(registry, replaced[late], "ada")
    assert await forget_erased(engine, registry, actor="retention", now=2002.0) == {}


async def test_erasing_a_user_without_data_changes_nothing(engine: AsyncEngine, registry: ArtefactRegistry) -> None:
    current = registry.current().name
    erased = await erase_user(engine, registry, "nobody", actor="ann", reason="", now=2000.0)

    assert (erased.rows.requests, erased.replaced, registry.current().name) == (0, {}, current)
    assert versions_without(registry, ["00"]) == {}
