"""The work of the training process: from exported labels to a candidate, which is a table of the tiers by complexity
class and the levels above it that win (`quality.retraining.levels`), and the judgement on it.

The comparison simulates routing: the candidate scores each row by the cells and heads of the labels in the other folds,
the incumbent by the labels that it was trained on.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from classifier.complexity.model import shipped_complexity, standardised
from classifier.errors import TrainingDataError
from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import SCHEMA_VERSION, TrainingWindow
from classifier.registry.artefact import load_artefact, load_manifest, load_model_tensors, save_artefact
from quality.comparison.association import Association, association
from quality.learning.own_labels import BEFORE_CHANGE, before_change
from quality.retraining.levels import MOST_OF_TENANT, NO_HEADS, Folds, Learned, learn, related_folds
from quality.retraining.training_process import Order
from quality.rollout.promotion_gate import Judgement, Predicted, judge_candidate
from quality.verification.training_rows import TRAINED_ON, without_errors

Float = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[Any]]
Progress = Callable[[str, float], None]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in the registry, and the judgement on it."""

    version: str
    path: str
    judgement: Judgement


def carry_out(order: Order, rows_file: Path, progress: Progress) -> Trained:
    """Train and judge on the rows in `rows_file`, as written by `quality.verification.training_rows.export_rows`.
    Raises `TrainingDataError` or `ArtefactError` for rows or artefacts that do not fit."""
    progress("reading the rows", 0.0)
    tensors = load_file(rows_file)
    labels = exported_labels(tensors, order.changes)
    prior = np.array(order.prior, np.float32)[:, :-1]
    if not len(labels):
        raise TrainingDataError("no new rows; retraining needs some verified outcomes.")
    if prior.shape[1] != labels.scores.shape[1]:
        raise TrainingDataError(
            f"the rows are of {labels.scores.shape[1] + 1} tiers, the catalogue has {prior.shape[1] + 1}."
        )
    progress("training", 0.1)
    fold = related_folds(labels.embedding)
    shown = association(labels, prior, MOST_OF_TENANT, look=order.look, seed=order.seed)
    learned = learn(labels, fold, prior, order.serving, by_prompt=shown.is_shown)
    folder = _saved(order, learned, len(labels))
    progress("comparing with the incumbent", 0.4)
    judgement = _judged(order, folder, tensors, labels, fold, prior, learned, shown)
    return Trained(version=folder.name, path=str(folder), judgement=judgement)


def _judged(
    order: Order,
    folder: Path,
    tensors: Tensors,
    labels: Labels,
    fold: Folds,
    prior: Float,
    learned: Learned,
    shown: Association,
) -> Judgement:
    """Judge the candidate in `folder` on the rows that the incumbent was not trained on."""
    incumbent = load_artefact(Path(order.incumbent), order.catalogue_fingerprint)
    table = incumbent.adequacy if incumbent.kind == "measured" else None
    is_of_these_tiers = table is not None and table.shape == prior.shape
    baseline, head = (table, incumbent.learned_head) if table is not None and is_of_these_tiers else (prior, None)
    compared = tensors["compare"].astype(np.bool_)
    ours = predicted_in_folds(labels, fold, prior, learned.heads)
    theirs = predicted_by(labels.take(~compared), baseline, labels, head)
    # Outcomes from before a tier's change do not predict how often it fails now.
    stale = ~np.isnan(labels.scores) & (_decay(tensors, order.changes, labels.scores.shape[1]) < 1.0)
    current = replace(labels, scores=np.where(stale, np.float32(np.nan), labels.scores))
    judgement = judge_candidate(
        load_artefact(folder, order.catalogue_fingerprint),
        incumbent,
        current.take(compared),
        Predicted(ours[compared], theirs[compared], rates_in_folds(labels, fold)[compared]),
        order.serving,
        shown,
        seed=order.seed,
    )
    changed = {tier + 1 for tier in np.flatnonzero(stale.any(axis=0)).tolist()} | order.changes.keys()
    outdated = {tier: int(stale[:, tier - 1].sum()) for tier in sorted(changed) if tier <= stale.shape[1]}
    return msgspec.structs.replace(judgement, outdated=outdated)


def exported_labels(tensors: Tensors, changes: dict[int, float]) -> Labels:
    """Return exported rows as labels, without the errors of their judges; those from before `changes` of their tier get
    a small weight."""
    model, outcomes = shipped_complexity(), tensors["no_worse"]
    informed = tensors.get("informed", np.ones_like(outcomes))
    told = np.where(np.isnan(outcomes), np.float32(0), tensors["told"]) * informed
    return Labels(
        classes=tensors["classes"],
        whole=tensors.get("whole", tensors["classes"]),
        embedding=tensors["embedding"],
        surface=standardised(tensors["features"], model.centre, model.scale),
        scores=without_errors(outcomes, informed),
        weights=told * _decay(tensors, changes, outcomes.shape[1]),
        key=tensors["key"] + 1,
        context=tensors["context"],
        tenant=tensors["tenant"],
        private=np.zeros(len(tensors["key"]), np.bool_),
    )


def _decay(tensors: Tensors, changes: dict[int, float], weaker: int) -> Float:
    """Return the share [n, tiers - 1] of its weight that each label keeps after changes of its tier."""
    decay = np.array([before_change(at, weaker, changes) for at in tensors["at"].tolist()], np.float32)
    decay = decay.reshape(-1, weaker)
    decay[tensors["at"][:, None] < tensors["changed"]] = BEFORE_CHANGE
    return decay


def predicted_in_folds(labels: Labels, fold: Folds, table: Float, heads: Mapping[int, LearnedHead] = NO_HEADS) -> Float:
    """Return P(as good) [n, tiers - 1] of each label's prompt from the labels of other folds, over `table` [4, tiers -
    1], or over the head of its fold, which learned from the other folds too."""
    predicted = np.zeros(labels.scores.shape, np.float32)
    for number in np.unique(fold):
        mine = fold == number
        predicted[mine] = predicted_by(labels.take(~mine), table, labels.take(mine), heads.get(int(number)))
    return predicted


def rates_in_folds(labels: Labels, fold: Folds) -> Float:
    """Return [n, tiers - 1]: each tier's rate of good answers in the other folds, whatever the prompt."""
    rates = np.zeros(labels.scores.shape, np.float32)
    good = labels.told * np.nan_to_num(labels.scores)
    for number in np.unique(fold):
        others = fold != number
        rates[~others] = (good[others].sum(axis=0) + 1.0) / (labels.told[others].sum(axis=0) + 2.0)
    return rates


def predicted_by(labels: Labels, table: Float, asked: Labels, head: LearnedHead | None = None) -> Float:
    """Return P(as good) [n, tiers - 1] of the prompts `asked` from `labels`, over `table` [4, tiers - 1] or
    over the `head` that was fitted on them."""
    if not len(labels):
        scores: Float = asked.classes @ table
        if head is not None:
            scores = head.p(asked.classes, asked.embedding, asked.surface)
    else:
        estimator = LocalEstimator(labels, table, 0 if head is None else len(labels), head=head)
        scores = np.zeros(asked.scores.shape, np.float32)
        for key, context, tenant in {
            *zip(asked.key.tolist(), asked.context.tolist(), asked.tenant.tolist(), strict=True)
        }:
            rows = (asked.key == key) & (asked.context == context)
            mine = asked.take(rows)
            scores[rows] = estimator.score(mine.classes, mine.embedding, mine.surface, key, context, tenant, mine.whole)
    clipped: Float = np.clip(scores, 0.0, 1.0)
    return clipped


def _saved(order: Order, learned: Learned, labels: int) -> Path:
    """Save the lineage's root artefact with what was learned; its name is derived from the content."""
    root, parent, table = Path(order.root_artefact), load_manifest(Path(order.incumbent)), learned.table
    content = [parent.version, order.catalogue_fingerprint, str(order.window_end), str(labels), str(table.tolist())]
    tensors = {} if learned.head is None else learned.head.tensors()
    content += [array.tobytes().hex() for array in tensors.values()]
    manifest = msgspec.structs.replace(
        load_manifest(root),
        schema_version=SCHEMA_VERSION,
        version=f"v{SCHEMA_VERSION}-{hashlib.sha256(' '.join(content).encode()).hexdigest()[:12]}",
        parent=parent.version,
        tiers=table.shape[1] + 1,
        catalogue_fingerprint=order.catalogue_fingerprint,
        models=order.models,
        training_window=TrainingWindow(start=order.window_start, end=order.window_end, source=TRAINED_ON),
        counts={"labels": labels},
        adequacy=[[round(p, 4) for p in row] for row in table.tolist()],
        levels=learned.levels,
        seed=order.seed,
    )
    return save_artefact(Path(order.registry), manifest, load_model_tensors(root) | tensors)
