"""The laboratory's prompts and its shipped artefact: who is trained on what, and who asks what, never mixed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.artefact import load_artefact
from classifier.outcome_model import OutcomeModel
from classifier.registry import ArtefactRegistry
from classifier.routing_input import routing_input_of_text
from classifier.training.dataset import RIGHT, OutcomeRow, data_hash
from classifier.training.encoded_rows import EncodedRows
from classifier.training.train import EMBEDDING_DIM, Progress, encode_split, hidden_states, passage_digest, train
from quality.laboratory.scenario import Common, Scenario
from quality.laboratory.truth import Truth

# Of the training passages, those that calibrate the shipped artefact: 38 of 256.
_CALIBRATES = 38


@dataclass(frozen=True)
class Prompts:
    """n prompts as the shipped artefact's encoder sees them: `encoded` with no label, and who they are for reports.

    `shifted` bool [n]: of the domains that the scenario is about; all, where it is about none.
    """

    encoded: EncodedRows
    domain: npt.NDArray[np.str_]
    shifted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.domain)


@dataclass(frozen=True)
class World:
    """Prompts of the traffic, fresh ones for measuring, and the artefact that ships; truths beside them."""

    shipped: Path
    model: OutcomeModel
    traffic: Prompts
    fresh: Prompts
    traffic_truth: Truth
    fresh_truth: Truth


def build_world(
    rows: Sequence[OutcomeRow],
    common: Common,
    scenario: Scenario,
    folder: Path,
    *,
    teacher: str = "",
    dim: int = EMBEDDING_DIM,
    progress: Progress = lambda stage, share: None,
) -> World:
    """The world of a scenario. Three splits, three uses: the shipped artefact is trained on the train split; the
    traffic asks the valid split's prompts and, of domains that the artefact has not seen, the train split's too; what
    is measured on fresh prompts is measured on the test split's.

    The shipped artefact is kept in `folder` by the hash of what it is made of.
    """
    shipped = shipped_artefact(rows, scenario.held_out, folder, teacher=teacher, dim=dim, progress=progress)
    model = load_artefact(shipped)
    ladder = [r for r in rows if r.metric in common.metrics and set(common.models) <= set(r.outcomes)]
    unseen = [r for r in ladder if r.split == "train" and r.domain in scenario.held_out]
    asked, kept = [r for r in ladder if r.split == "valid"] + unseen, [r for r in ladder if r.split == "test"]
    return World(
        shipped=shipped,
        model=model,
        traffic=_prompts(model, asked, scenario),
        fresh=_prompts(model, kept, scenario),
        traffic_truth=_truth(asked, common),
        fresh_truth=_truth(kept, common),
    )


def shipped_artefact(
    rows: Sequence[OutcomeRow],
    hold: Sequence[str],
    folder: Path,
    *,
    teacher: str = "",
    dim: int = EMBEDDING_DIM,
    progress: Progress = lambda stage, share: None,
) -> Path:
    """The artefact trained on the train split without the domains in `hold`, calibrated on some of its passages."""
    used = [r for r in rows if r.split == "train" and r.domain not in hold]
    split = [msgspec.structs.replace(r, split="valid" if _calibrates(r) else "train") for r in used]
    # Training reports on a test split; of these rows none is to spare, so the report is on what calibrates.
    split += [msgspec.structs.replace(r, split="test") for r in split if r.split == "valid"]
    made_of = f"{data_hash(split)} {teacher}"
    root = folder / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    if not (root / "current.json").is_file():
        trained = train(split, root, teacher=hidden_states(teacher, progress), dim=dim, progress=progress)
        ArtefactRegistry(root).promote(trained.model.version)
    return ArtefactRegistry(root).current()


def _calibrates(row: OutcomeRow) -> bool:
    return passage_digest(row.prompt)[1] < _CALIBRATES


def _prompts(model: OutcomeModel, rows: Sequence[OutcomeRow], scenario: Scenario) -> Prompts:
    domain = np.array([r.domain for r in rows])
    encoded = encode_split(model.encoder, rows, [routing_input_of_text(r.prompt) for r in rows], sorted(set(domain)))
    unlabelled = replace(encoded, labels=np.full_like(encoded.labels, np.nan), group=np.full(len(rows), -1, np.int32))
    shifted = np.isin(domain, scenario.domains) if scenario.domains else np.ones(len(rows), np.bool_)
    return Prompts(unlabelled, domain, shifted)


def _truth(rows: Sequence[OutcomeRow], common: Common) -> Truth:
    return Truth(np.array([[r.outcomes[model] >= RIGHT for model in common.models] for r in rows], np.bool_))
