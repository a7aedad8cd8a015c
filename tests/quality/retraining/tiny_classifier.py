"""A tiny classifier, and live traffic that it was not trained on, for tests of retraining."""

import random
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import load_artefact
from classifier.registry.registry import ArtefactRegistry
from classifier.training.data.dataset import TIER_MODELS, OutcomeRow
from classifier.training.recipes.train_static import train
from migrations.tables.quality import training_rows
from quality.retraining.retrain import RetrainSettings
from quality.verification.training_rows import encode_prompt

SETTINGS = RetrainSettings(catalogue_fingerprint="serving", models={"serving": ["a", "b", "c", "d"]})
# What each topic is stored as: of certain classes, so that a test knows what there is to learn.
TOPICS = {
    "cotton": Complexity.SIMPLE,
    "gamma": Complexity.MEDIUM,
    "delta": Complexity.COMPLEX,
    "copper": Complexity.EXPERT,
}
_FILLERS = ["table", "window", "garden", "river", "market", "silver", "bridge", "forest", "winter", "morning"]


def base_artefact(root: Path) -> Path:
    """Trained on prompts about copper (hard for tier 1) and cotton (easy); gamma and delta are only words to it."""
    rng = random.Random(0)
    rows = [_base_row(i, rng) for i in range(900)]
    folder = train(rows, root, dim=8, max_terms=200).folder
    ArtefactRegistry(root).promote(folder.name)
    return folder


def _base_row(i: int, rng: random.Random) -> OutcomeRow:
    topic = rng.choice(["copper"] * 4 + ["cotton"] * 4 + ["gamma", "delta"])
    fails = {"copper": 0.8, "cotton": 0.01}.get(topic, 0.5)
    right = [float(rng.random() >= fails), float(rng.random() >= fails / 2), 1.0, 1.0]
    models = TIER_MODELS["llmrouter"]
    return OutcomeRow(
        id=f"row-{i}",
        source="llmrouter",
        domain=topic,
        metric="mc",
        # Held-out rows must not be about the topics that are unknown to it.
        split="train" if fails == 0.5 else rng.choices(["train", "valid", "test"], [0.6, 0.2, 0.2])[0],
        prompt=prompt_about(topic, rng),
        outcomes={str(model): score for model, score in zip(models, right, strict=True)},
    )


def prompt_about(topic: str, rng: random.Random) -> str:
    return f"Tell me about {topic} {' '.join(rng.sample(_FILLERS, 4))}"


def fresh_registry(folder: Path, shipped: Path) -> ArtefactRegistry:
    registry = ArtefactRegistry(folder)
    registry.seed(shipped)
    return registry


async def store_experience(
    engine: AsyncEngine, model: OutcomeModel, count: int, *, informative: bool = True, seed: int = 1
) -> None:
    """Verified answers of tier 1: wrong about gamma and right about delta, or right and wrong at random."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        topic = rng.choice(["gamma", "delta"])
        good = (topic == "delta") if informative else rng.random() < 0.5
        row = experience_row(model, f"live-{seed}-{i}", prompt_about(topic, rng), good)
        made.append({**row, "created_at": 1000.0 + i})
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), made)


def classes_of(prompt: str) -> list[float]:
    """P of the four classes: one of them for sure by the topic, else none more than another."""
    known = next((kind for topic, kind in TOPICS.items() if topic in prompt), None)
    return [0.25] * 4 if known is None else [float(kind == known) for kind in Complexity]


def experience_row(model: OutcomeModel, request_id: str, prompt: str, good: bool) -> dict[str, Any]:
    encoded = encode_prompt(model, [{"role": "user", "content": prompt}])
    return {
        "request_id": request_id,
        "source": "verification",
        "feature_spec": encoded.feature_spec,
        "embedding": encoded.embedding,
        "features": encoded.features,
        "classes": classes_of(prompt),
        "no_worse": [good, None, None, True],
        "weights": [1.0, 0.0, 0.0, 0.0],
    }


def model_in(registry: ArtefactRegistry) -> OutcomeModel:
    return load_artefact(registry.current())
