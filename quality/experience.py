"""Stored experience: prompts as the classifier's vectors, written by the monitor and read back for retraining."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.class_predictor import ClassPredictor
from classifier.curve import CURVE_ROWS
from classifier.encoder import SlowEncoder
from classifier.manifest import Manifest
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input
from migrations.tables import training_rows, verifications
from quality.sampling import uniform
from quality.tier_outcomes import outcomes_of_tiers
from quality.verification import EncodedPrompt

Encode = Callable[[list[dict[str, str]]], Awaitable[EncodedPrompt]]
Tensors = dict[str, npt.NDArray[Any]]

# The source in a manifest's training window, if stored rows trained the version.
TRAINED_ON = "verified traffic"
# Of the rows, kept from the heads' training to calibrate them; and of the probes, which alone can draw the cost-quality
# curve (DESIGN §5), as soon as there are so many that this is enough of them.
CALIBRATE_SHARE, CURVE_SHARE = 0.15, 0.5
# Each row is compared on by a candidate that was trained on the rows of the other folds.
FOLDS = 4
# Inverse probabilities of sampling, over their mean, are kept within these bounds: no row may be all of a sample.
LEAST_WEIGHT, MOST_WEIGHT = 0.25, 4.0
_SPLIT_KEY = "retraining split"
# Who complains does not do so at random: a word of a user counts as a quarter of a verification.
FEEDBACK_WEIGHT = 0.25
# Of rows that earlier releases stored.
ANY_CLASS = (0.25, 0.25, 0.25, 0.25)
_F4 = np.dtype("<f4")


def encoder_of(model: Callable[[], OutcomeModel]) -> Encode:
    """An `Encode` with whatever artefact `model` returns at the moment, so that a promotion takes effect at once.

    A slow encoder is waited for while others are served.
    """

    async def encode(messages: list[dict[str, str]]) -> EncodedPrompt:
        now = model()
        if isinstance(now.encoder, SlowEncoder):
            await asyncio.wrap_future(now.encoder.submit(routing_input(messages).turn))
        return encode_prompt(now, messages)

    return encode


def text_embedder(encode: Encode) -> Callable[[str], Awaitable[npt.NDArray[np.float32]]]:
    """Embeddings of bare texts by the encoder of `encode`, to compare answers with."""

    async def embed(text: str) -> npt.NDArray[np.float32]:
        return vector_of((await encode([{"role": "user", "content": text}])).embedding)

    return embed


def encode_prompt(model: OutcomeModel, messages: list[dict[str, str]]) -> EncodedPrompt:
    """`messages` as vectors of `model`'s encoder; `features` holds surface features, then word logits."""
    given = routing_input(messages)
    turn = model.encode(given)
    return EncodedPrompt(
        feature_spec=feature_spec(model.manifest),
        embedding=turn.embedding.astype(_F4).tobytes(),
        features=np.concatenate([turn.features, turn.word_logits]).astype(_F4).tobytes(),
        cluster=int(model.clusters.nearest(turn.embedding[None])[0]),
        classes=[round(p, 4) for p in ClassPredictor(model).classes(given, turn)],
        app=given.app or None,
    )


def feature_spec(manifest: Manifest) -> str:
    """What makes vectors comparable: the frozen encoder and the list of surface features; 64 characters."""
    parts = [str(manifest.encoder["sha256"]), *manifest.feature_names, *manifest.heads]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


async def export_rows(engine: AsyncEngine, manifest: Manifest, tiers_now: Sequence[str] = ()) -> Tensors:
    """All stored rows that `manifest`'s encoder made of as many tiers, oldest first, as tensors without texts or names.

    float32 `features` [n, f], `embedding` [n, d], `word_logits` [n, h], `no_worse` [n, tiers - 1] and `correct`
    [n, tiers] with NaN unobserved, `weights` [n]; uint8 `held` [n] (calibrates and draws the curve), `fold` [n] and
    `compare` [n] (the version of `manifest` was not trained on it); float64 `at` [n], epoch seconds. `held` and `fold`
    follow from a hash of the request. A weight is the judge's informedness, times the inverse probability of being
    sampled where that was not uniform. `classes` [n, 4]; `told` [n, tiers - 1], what each label tells; int32 `key` and
    `context` [n] number callers' keys and their system prompts, -1 for none.

    `tiers_now`: fingerprints of today's tiers, whose outcomes alone count (`quality.tier_outcomes`); without them those
    of rows with as many tiers.
    """
    sampled = (
        select(verifications.c.request_id, func.max(verifications.c.sampled_probability).label("probability"))
        .group_by(verifications.c.request_id)
        .subquery()
    )
    query = (
        select(training_rows, sampled.c.probability)
        .outerjoin(sampled, sampled.c.request_id == training_rows.c.request_id)
        .where(training_rows.c.feature_spec == feature_spec(manifest), training_rows.c.features.is_not(None))
        .order_by(training_rows.c.created_at, training_rows.c.training_row_id)
    )
    async with engine.connect() as connection:
        stored = [dict(row) for row in (await connection.execute(query)).mappings()]
    rows = [now for row in stored if (now := _of_today(row, tiers_now or [""] * manifest.tiers)) is not None]
    names, heads, tiers = len(manifest.feature_names), len(manifest.heads), manifest.tiers
    vectors = np.array([vector_of(row["features"]) for row in rows], np.float32).reshape(len(rows), names + heads)
    draws = np.array([uniform(row["request_id"] or str(row["training_row_id"]), _SPLIT_KEY) for row in rows])
    at = np.array([row["created_at"] for row in rows], np.float64)
    return {
        "features": vectors[:, :names],
        "word_logits": vectors[:, names:],
        "embedding": np.array([vector_of(row["embedding"]) for row in rows], np.float32).reshape(
            len(rows), int(manifest.encoder["dim"])
        ),
        "no_worse": np.array([outcomes_of(row["no_worse"][:-1]) for row in rows], np.float32).reshape(-1, tiers - 1),
        "correct": np.array([outcomes_of(row["correct"] or [None] * tiers) for row in rows], np.float32).reshape(
            -1, tiers
        ),
        "weights": np.array([max(row["weights"]) for row in rows], np.float32) * _inverse_probabilities(rows),
        "classes": np.array([row["classes"] or ANY_CLASS for row in rows], np.float32).reshape(-1, 4),
        "told": np.array([told_by(row, tiers_now) for row in rows], np.float32).reshape(-1, tiers - 1),
        "key": _numbered([row["key_id"] or "" for row in rows]),
        "context": _numbered([f"{row['key_id']} {row['app']}" if row["app"] else "" for row in rows]),
        "held": held(draws, np.array([row["source"] == "probe" for row in rows], np.bool_)).astype(np.uint8),
        "fold": folds(draws),
        "compare": (at > trained_until(manifest)).astype(np.uint8),
        "at": at,
    }


def _of_today(row: dict[str, Any], tiers: Sequence[str]) -> dict[str, Any] | None:
    """A stored row with the outcomes of today's tiers; None if it has none of theirs."""
    owners = row["tiers"] if any(tiers) else None
    no_worse = outcomes_of_tiers(row["no_worse"], owners, tiers)
    if no_worse is None:
        return None
    correct = None if row["correct"] is None else outcomes_of_tiers(row["correct"], owners, tiers)
    return row | {"no_worse": no_worse, "correct": correct}


def told_by(row: RowMapping | dict[str, Any], tiers: Sequence[str]) -> list[float]:
    """What a stored row's label of each weaker tier of today's `tiers` tells, in [0, 1]."""
    share = FEEDBACK_WEIGHT if row["source"] == "feedback" else 1.0
    weights = [share * min(max(weight, 0.0), 1.0) for weight in row["weights"]]
    found = outcomes_of_tiers(weights, row["tiers"] if any(tiers) else None, tiers or [""] * len(weights))
    return [weight or 0.0 for weight in (found or weights)[:-1]]


def _numbered(names: Sequence[str]) -> npt.NDArray[np.int32]:
    """[n]: equal names have equal numbers from 0 on; "" has -1."""
    numbers = {"": -1}
    return np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], np.int32)


def held(draws: npt.NDArray[np.floating], probes: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows [n] train no head, by a number in [0, 1) for each and whether it is a probe."""
    many = np.count_nonzero(probes & (draws < CURVE_SHARE)) >= CURVE_ROWS
    kept: npt.NDArray[np.bool_] = draws < np.where(probes & many, CURVE_SHARE, CALIBRATE_SHARE)
    return kept


def folds(draws: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """The fold [n] of each row by its number in [0, 1); of its further digits, so that every fold has its share of
    what is held."""
    return (draws * 997.0 % 1.0 * FOLDS).astype(np.uint8)


def trained_until(manifest: Manifest) -> float:
    """Epoch seconds until which verified traffic trained this version; 0 if none did."""
    window = manifest.training_window
    if window.source != TRAINED_ON or window.end is None:
        return 0.0
    # Manifests name whole seconds.
    return datetime.fromisoformat(window.end).timestamp() + 1.0


def _inverse_probabilities(rows: list[dict[str, Any]]) -> npt.NDArray[np.float32]:
    """[n], about 1 in the mean: Horvitz-Thompson weights of sampled rows. Probes are uniformly random, and what users
    say was not drawn."""
    drawn = [row["source"] == "verification" and bool(row["probability"]) for row in rows]
    inverse = np.array([1.0 / row["probability"] if known else np.nan for row, known in zip(rows, drawn, strict=True)])
    if not any(drawn):
        return np.ones(len(rows), np.float32)
    relative = np.clip(inverse / np.nanmean(inverse), LEAST_WEIGHT, MOST_WEIGHT)
    weights: npt.NDArray[np.float32] = np.nan_to_num(relative, nan=1.0).astype(np.float32)
    return weights


def data_hash(tensors: Tensors, *versions: str) -> str:
    """SHA-256 of rows and of the versions of what they are trained on: equal hashes give equal candidates."""
    digest = hashlib.sha256("\n".join(versions).encode())
    digest.update(save({name: np.ascontiguousarray(values) for name, values in sorted(tensors.items())}))
    return digest.hexdigest()


def vector_of(blob: bytes) -> npt.NDArray[np.float32]:
    """A stored vector."""
    return np.frombuffer(blob, _F4).astype(np.float32)


def outcomes_of(values: list[bool | None]) -> list[float]:
    """Stored outcomes as 0, 1 and NaN for what was not observed."""
    return [float("nan") if value is None else float(value) for value in values]
