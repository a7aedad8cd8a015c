"""Stored training rows: prompts as the classifier's vectors, written by the monitor and exported for retraining; and
what stored labels say of a tier's answers to all prompts.

Outcomes belong to tier fingerprints (`Catalog.tier_fingerprint`), not to positions in the ladder. A change of one
tier's model, policy or quantisation thus keeps the outcomes of the others. "No worse" compares with the strongest
tier's answer, so a change of the strongest tier invalidates all.

A judge that errs in a share e of either kind of answers says z, and (z - e) / (1 - 2 e) is right on average (Rogan and
Gladen 1978). With J = 1 - 2 e, its informedness, that has 1/J^2 of the variance, so it weighs J^2.

Answers are verified where their tier was chosen, and tiers are chosen where they are thought to be good. What is drawn
depends on the prompt alone, and what is learned is P(no worse) of a prompt: labels of equal prompts say the same of it,
however they were drawn, and weigh alike. Rates over many prompts are of those that were drawn; what all traffic would
say is a matter of reports, which weigh verdicts by their chance (`quality.estimates.verified_sample`). Weights by the
inverse chance were measured, and cost utility (docs/results/quality.md)."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from sqlalchemy import Label, RowMapping, case, exists, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.class_predictor import ClassPredictor
from classifier.encoders.static_encoder import SlowEncoder
from classifier.features.routing_input import routing_input
from classifier.model.outcome_model import Manifest, OutcomeModel
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys
from quality.store.queries import labels_count_from
from quality.verification.job import Ruling, VerificationJob

Value = TypeVar("Value", bool, float)


def outcomes_of_tiers(
    outcomes: Sequence[Value | None], owners: Sequence[str] | None, tiers: Sequence[str]
) -> list[Value | None] | None:
    """Map `outcomes` of the tiers with the fingerprints `owners` to the current `tiers`, None for a tier without one.

    Returns None if the row has no current outcome: its strongest tier was another, or its owners were not stored and it
    has another number of tiers. With the same number such a row is assumed to belong to the current tiers.
    """
    if not owners:
        return list(outcomes) if len(outcomes) == len(tiers) else None
    if len(owners) != len(outcomes) or owners[-1] != tiers[-1]:
        return None
    outcome_by_owner = dict(zip(owners, outcomes, strict=True))
    mapped: list[Value | None] = [outcome_by_owner.get(tier) for tier in tiers[:-1]]
    if all(outcome is None for outcome in mapped):
        return None
    mapped.append(outcomes[-1])
    return mapped


Float = npt.NDArray[np.float32]

# A judge of less says nothing that would be worth dividing by.
LEAST_INFORMED = 0.05


def without_errors(outcomes: Float, informed: Float) -> Float:
    """Return `outcomes`, 1, 0 or NaN, without the errors of judges of the informedness `informed`, both of one shape:
    on average what is true, and for one outcome above 1 or below 0."""
    within: Float = np.clip(informed, LEAST_INFORMED, 1.0)
    corrected: Float = ((outcomes - 0.5) / within + 0.5).astype(np.float32)
    return corrected


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the classifier sees it, without its text: vectors of little-endian float32 and the encoder's id."""

    feature_spec: str
    embedding: bytes
    features: bytes | None
    """Features of the surface, then word logits, and where the turn brings material, P of the four complexity classes
    of all of it.
    """
    classes: list[float] | None = None
    """P of the four complexity classes of the request alone."""
    app: str | None = None
    """A hash of the system prompt, None without one."""


Encode = Callable[[list[dict[str, str]]], Awaitable[EncodedPrompt]]
Tensors = dict[str, npt.NDArray[Any]]

# The source in a manifest's training window if the version was trained on stored rows.
TRAINED_ON = "verified traffic"
# The sources of labels that a judge made, which weigh as much as it is informed.
JUDGED = ("verification", "probe")
# The sources of a caller's feedback, which counts for its own key alone, and of an operator's review.
FEEDBACK, REVIEW = "feedback", "review"
# Neither is a random sample, so they count as a quarter of a verification.
FEEDBACK_WEIGHT = 0.25
# Whose a row is, as `gateway.base.inference_request.Caller.tenant`: the team of its key, else the key, ""
# without one. A key's team never changes.
WITH_KEYS = training_rows.outerjoin(api_keys, api_keys.c.key_id == training_rows.c.key_id)
TENANT = func.coalesce(api_keys.c.team_id, training_rows.c.key_id, "").label("tenant")
_IN_TEAMS = api_keys.alias("keys_in_teams")
USES_TEAMS = exists(select(_IN_TEAMS.c.key_id).where(_IN_TEAMS.c.team_id.is_not(None)))


def learning_group(keys_are_tenants: bool) -> Label[str]:
    """Return the column that says whose labels count fully for each other: with `keys_are_tenants`, or where teams are
    used, those of a tenant; else those of the installation, "". So a company without teams learns across its keys; what
    separates caches and prefixes, `Caller.tenant`, is unchanged."""
    group = TENANT.element if keys_are_tenants else case((USES_TEAMS, TENANT.element), else_="")
    return group.label("learning_group")


# For rows stored by earlier releases.
ANY_CLASS = (0.25, 0.25, 0.25, 0.25)
_F4 = np.dtype("<f4")


def encoder_of(model: Callable[[], OutcomeModel]) -> Encode:
    """Return an `Encode` that uses the artefact that `model` returns at each call, so promotion is immediate.

    A slow encoder runs in a thread, so that other requests are served meanwhile.
    """

    async def encode(messages: list[dict[str, str]]) -> EncodedPrompt:
        now = model()
        if isinstance(now.encoder, SlowEncoder):
            await asyncio.wrap_future(now.encoder.submit(routing_input(messages).turn))
        return encode_prompt(now, messages)

    return encode


def text_embedder(encode: Encode) -> Callable[[str], Awaitable[npt.NDArray[np.float32]]]:
    """Return a function that embeds bare texts by the encoder of `encode`, to compare answers."""

    async def embed(text: str) -> npt.NDArray[np.float32]:
        return vector_of((await encode([{"role": "user", "content": text}])).embedding)

    return embed


def encode_prompt(model: OutcomeModel, messages: list[dict[str, str]]) -> EncodedPrompt:
    """Encode `messages` by `model`'s encoder."""
    prompt_input = routing_input(messages)
    turn, predictor = model.encode(prompt_input), ClassPredictor(model)
    whole = np.array(predictor.whole_classes(prompt_input, turn), np.float32)
    return EncodedPrompt(
        feature_spec=feature_spec(model.manifest),
        embedding=turn.embedding.astype(_F4).tobytes(),
        features=np.concatenate([turn.features, whole]).astype(_F4).tobytes(),
        classes=[round(p, 4) for p in predictor.classes(prompt_input, turn)],
        app=prompt_input.app or None,
    )


def training_row(
    job: VerificationJob,
    rulings: Sequence[Ruling],
    encoded: EncodedPrompt,
    tiers: int,
    now: float,
    fingerprints: Sequence[str] = (),
) -> dict[str, Any] | None:
    """Return the `training_rows` row that `rulings` yield for `tiers` tiers, with their `fingerprints` where known;
    None without a label to learn from: an uncertain one teaches nothing.

    Only the judged tiers' outcomes are known, and only where the strongest tier's answer was the reference; the
    strongest tier is no worse than itself. `correct` stays empty, because agreeing with the strongest tier is not being
    right. The weight is the judge's informedness (Youden's J).
    """
    no_worse: list[bool | None] = [None] * tiers
    weights = [0.0] * tiers
    for ruling in rulings:
        if ruling.teaches and ruling.judge_reliability is not None and ruling.verifier_tier == tiers:
            no_worse[ruling.tier - 1] = ruling.label != "worse"
            weights[ruling.tier - 1] = 2 * ruling.judge_reliability - 1
    if not any(weights):
        return None
    no_worse[-1] = True
    return {
        "request_id": job.request_id,
        "key_id": job.key_id,
        "source": "probe" if job.purpose == "probe" else "verification",
        **msgspec.structs.asdict(encoded),
        "no_worse": no_worse,
        "correct": None,
        "weights": weights,
        "tiers": list(fingerprints) or None,
        "judge": next((ruling.judge for ruling in rulings if ruling.teaches), None),
        "created_at": now,
    }


def feature_spec(manifest: Manifest) -> str:
    """Return an id of 64 characters for what makes vectors comparable: the frozen encoder and the list of surface
    features."""
    parts = [str(manifest.encoder["sha256"]), *manifest.feature_names, *manifest.heads]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


async def export_rows(
    engine: AsyncEngine,
    manifest: Manifest,
    tiers_now: Sequence[str],
    changes: Mapping[str | None, Mapping[int, float]] = MappingProxyType({}),
    keys_are_tenants: bool = False,
) -> Tensors:
    """Return the stored rows made by `manifest`'s encoder, since the last reset of labels, oldest first, as tensors
    without texts or names; callers' feedback, which counts for its own key alone, is left out.

    float32 `features` [n, f], `embedding` [n, d], `classes` of the request and of the `whole` turn [n, 4], `no_worse`
    [n, tiers - 1] with NaN for unobserved outcomes, the label weights, `told` [n, tiers - 1], and the `informed`ness of
    their judges, of that shape; uint8 `compare` [n] (`manifest`'s version was not trained on the row); float64 `at`
    [n], epoch seconds; int32 `key` and `context` [n] number callers' keys and their system prompts, and `tenant` [n]
    their `learning_group`; -1 for none.

    `changes`: by tenant, when a tier's answers changed as its own alone show (epoch seconds); in `changed` [n, tiers -
    1], 0 without a change. `tiers_now`: fingerprints of the current tiers, whose outcomes alone count
    (`quality.verification.training_rows`); "" for unknown ones: then rows with the same number of tiers count.
    """
    async with engine.connect() as connection:
        query = (
            select(training_rows, TENANT, learning_group(keys_are_tenants))
            .select_from(WITH_KEYS)
            .where(
                training_rows.c.created_at > await labels_count_from(connection),
                training_rows.c.feature_spec == feature_spec(manifest),
                training_rows.c.features.is_not(None),
                training_rows.c.source != FEEDBACK,
            )
            .order_by(training_rows.c.created_at, training_rows.c.training_row_id)
        )
        stored = [dict(row) for row in (await connection.execute(query)).mappings()]
    rows = [now for row in stored if (now := _of_today(row, tiers_now)) is not None]
    names = len(manifest.feature_names)
    at = np.array([row["created_at"] for row in rows], np.float64)
    dim, weaker = int(manifest.encoder["dim"]), len(tiers_now) - 1
    return {
        "features": _stacked([vector_of(row["features"])[:names] for row in rows], names),
        "embedding": _stacked([vector_of(row["embedding"]) for row in rows], dim),
        "no_worse": _stacked([outcomes_of(row["no_worse"][:-1]) for row in rows], weaker),
        "classes": _stacked([row["classes"] or ANY_CLASS for row in rows], len(ANY_CLASS)),
        "whole": _stacked(
            [whole_classes_of(row, manifest) or row["classes"] or ANY_CLASS for row in rows], len(ANY_CLASS)
        ),
        "told": _stacked([told_by(row, tiers_now) for row in rows], weaker),
        "informed": _stacked([informed_by(row, tiers_now) for row in rows], weaker),
        "key": _numbered([row["key_id"] or "" for row in rows]),
        "context": _numbered([f"{row['key_id']} {row['app']}" if row["app"] else "" for row in rows]),
        "tenant": _numbered([row["learning_group"] for row in rows]),
        "compare": (at > trained_until(manifest)).astype(np.uint8),
        "at": at,
        "changed": np.array(
            [[changes.get(row["tenant"], {}).get(tier, 0.0) for tier in range(1, weaker + 1)] for row in rows],
            np.float64,
        ).reshape(len(rows), weaker),
    }


def _of_today(row: dict[str, Any], tiers: Sequence[str]) -> dict[str, Any] | None:
    """Return a stored row with the outcomes of the current tiers; None without any."""
    owners = row["tiers"] if any(tiers) else None
    no_worse = outcomes_of_tiers(row["no_worse"], owners, tiers)
    return None if no_worse is None else row | {"no_worse": no_worse}


def told_by(row: RowMapping | dict[str, Any], tiers: Sequence[str]) -> list[float]:
    """Return the weight, in [0, 1], of a stored row's label for each weaker tier of the current `tiers`."""
    share = FEEDBACK_WEIGHT if row["source"] in (FEEDBACK, REVIEW) else 1.0
    weights = [share * min(max(weight, 0.0), 1.0) for weight in row["weights"]]
    return [weight or 0.0 for weight in _of_weaker(row, weights, tiers)]


def informed_by(row: RowMapping | dict[str, Any], tiers: Sequence[str]) -> list[float]:
    """Return the informedness of the judge of a stored row's label for each weaker tier of the current `tiers`; 1 where
    no judge made it."""
    if row["source"] not in JUDGED:
        return [1.0] * (len(tiers or row["weights"]) - 1)
    return [weight or 1.0 for weight in _of_weaker(row, row["weights"], tiers)]


def _of_weaker(row: RowMapping | dict[str, Any], values: Sequence[float], tiers: Sequence[str]) -> list[float | None]:
    """Return `values`, by tier of a stored row, for the weaker ones of the current `tiers`."""
    owners = row["tiers"] if any(tiers) else None
    return list(outcomes_of_tiers(values, owners, tiers or [""] * len(values)) or values)[:-1]


def _stacked(rows: Sequence[Any], columns: int) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32).reshape(len(rows), columns)


def _numbered(names: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return [n]: equal names have equal numbers from 0 on; "" has -1."""
    numbers = {"": -1}
    return np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], np.int32)


def trained_until(manifest: Manifest) -> float:
    """Return the epoch seconds until which verified traffic trained this version; 0 without any."""
    window = manifest.training_window
    if window.source != TRAINED_ON or window.end is None:
        return 0.0
    # Manifests have whole seconds.
    return datetime.fromisoformat(window.end).timestamp() + 1.0


def data_hash(tensors: Tensors, *versions: str) -> str:
    """Return the SHA-256 of rows and of the versions that they are trained on: equal hashes give equal candidates."""
    digest = hashlib.sha256("\n".join(versions).encode())
    digest.update(save({name: np.ascontiguousarray(values) for name, values in sorted(tensors.items())}))
    return digest.hexdigest()


def whole_classes_of(row: RowMapping | dict[str, Any], manifest: Manifest) -> list[float]:
    """Return P of the classes of the whole turn of a stored row with features of `manifest`'s encoder; empty where the
    turn brings no material, and in rows of earlier releases."""
    rest: list[float] = vector_of(row["features"])[len(manifest.feature_names) :].tolist()
    # Earlier releases stored logits of outcomes, more of them than there are classes.
    return rest[len(manifest.heads) :] if len(rest) > len(ANY_CLASS) else rest


def vector_of(blob: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(blob, _F4).astype(np.float32)


def outcomes_of(values: list[bool | None]) -> list[float]:
    """Return stored outcomes as 0, 1 and NaN for unobserved."""
    return [float("nan") if value is None else float(value) for value in values]
