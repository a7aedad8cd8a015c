"""Versions of the tiny classifier that are good, blind, inverted or broken, and probes that distinguish them."""

import random
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import adequacies, like_of
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.quality import training_rows
from quality.rollout.rollout import Rollouts, RolloutSettings
from quality.rollout.versions import registry_transaction
from tests.quality.retraining.tiny_classifier import SETTINGS, experience_row, prompt_about

GOOD, BAD = "v1-good", "v1-bad"
Table = list[list[float]]
QUICK = RolloutSettings(patience=30, watch_probes=60)


def variant(registry: ArtefactRegistry, version: str, table: Table | None = None) -> str:
    """A child of the current version that learned `table`, or the prior."""
    current = registry.current()
    learned = prior() if table is None else table
    manifest = msgspec.structs.replace(
        load_manifest(current),
        version=version,
        parent=current.name,
        catalogue_fingerprint=SETTINGS.catalogue_fingerprint,
        adequacy=learned,
    )
    save_artefact(registry.root, manifest, load_model_tensors(current))
    return version


def prior() -> Table:
    found: Table = adequacies(like_of(4))[:, :-1].round(4).tolist()
    return found


def inverted() -> Table:
    """Probabilities with the evidence reversed."""
    return [[round(1 - p, 4) for p in row] for row in prior()]


def blind() -> Table:
    """A version for which the cheapest tier is always good enough."""
    return [[0.995] * 3] * 4


async def store_probes(engine: AsyncEngine, model: OutcomeModel, count: int, at: float) -> None:
    """Full-ladder probes about copper, on which tier 1 fails, and cotton, from `at` on."""
    await store_topics(engine, model, count, at, {"copper": False, "cotton": True})


async def store_topics(engine: AsyncEngine, model: OutcomeModel, count: int, at: float, easy: dict[str, bool]) -> None:
    """Full-ladder probes about topics in turn, of which some are `easy` for tier 1."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        topic = list(easy)[i % len(easy)]
        row = experience_row(model, f"probe-{at}-{i}", prompt_about(topic, random.Random(at + i)), True)
        no_worse = [easy[topic], True, True, True]
        made.append({**row, "source": "probe", "no_worse": no_worse, "weights": [1.0] * 4, "created_at": at + i / 1e3})
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)


async def begin(rollouts: Rollouts, engine: AsyncEngine, version: str, settings: RolloutSettings = QUICK) -> None:
    """Start a rollout as retraining does."""
    incumbent = rollouts.registry.current().name
    async with registry_transaction(engine) as connection:
        await rollouts.begin(connection, version, incumbent, settings, actor="test", reason="better on held-out rows")
    await rollouts.advance()


def break_file(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def forget_a_feature(folder: Path) -> None:
    """Make the artefact like one of a program with other surface features."""
    manifest = load_manifest(folder)
    other = msgspec.structs.replace(manifest, feature_names=manifest.feature_names[:-1])
    (folder / "manifest.json").write_bytes(msgspec.json.encode(other))
