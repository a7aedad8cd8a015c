"""Measured results of a catalogue's tiers on the everyday tasks, known before its first request.

The catalogues laptop and ladder ship with theirs (`tiers/catalogs`); `aio classifier measure` measures any other
catalogue and stores the results in the data folder.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from classifier.class_predictor import ClassPredictor
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import ClassTable, measured_table
from classifier.registry.artefact import default_artefact, load_artefact
from quality.evaluation.everyday_outcomes import EverydayOutcomes, EverydayOutcomesError, TaskClasses, read_outcomes
from quality.evaluation.everyday_tasks import everyday_tasks
from tiers import catalogs
from tiers.catalog.catalog import Catalog

log = logging.getLogger(__name__)

SHIPPED = Path(catalogs.__file__).parent
OWN_FOLDER = "measured"


def with_measured(prior: ClassTable, catalog: Catalog, folders: Sequence[Path]) -> ClassTable:
    """Return `prior` with the results of all tiers of `catalog`, from the newest matching file in `folders` or else
    from the shipped ones; unchanged if there are none. An unusable file is skipped and logged."""
    wanted = [catalog.tier_fingerprint(tier.number) for tier in catalog.tiers]
    for paths in (*(folder.glob("*.json") for folder in folders), SHIPPED.glob("*_outcomes.json")):
        fitting = [found for path in sorted(paths) if (found := _of_tiers(path, wanted)) is not None]
        if fitting:
            newest = max(fitting, key=lambda outcomes: outcomes.measured_at)
            scores = np.array([newest.tiers[tier.number].scores for tier in catalog.tiers], np.float32).T
            # As good as the strongest tier's answer: right, or both wrong.
            as_good = (scores[:, :-1] >= scores[:, -1:]).astype(np.float32)
            return measured_table(prior, np.array(_classes_of(newest).p, np.float32), as_good)
    return prior


def _of_tiers(path: Path, wanted: Sequence[str]) -> EverydayOutcomes | None:
    try:
        outcomes = read_outcomes(path)
        if [outcomes.tiers[k].fingerprint for k in sorted(outcomes.tiers)] != list(wanted):
            return None
        outcomes.tasks()
    except EverydayOutcomesError as error:
        log.warning("%s", error)
        return None
    return outcomes


def _classes_of(outcomes: EverydayOutcomes) -> TaskClasses:
    """Those that were kept, unless they are another version's."""
    kept, tasks = outcomes.classes, len(outcomes.tiers[1].scores)
    if kept is not None and kept.version == default_artefact().name and len(kept.p) == tasks:
        return kept
    return task_classes(outcomes.seed, outcomes.per_level)


@lru_cache(maxsize=4)
def task_classes(seed: int, per_level: int) -> TaskClasses:
    """Return the complexity model's P of the classes of every task."""
    folder = default_artefact()
    model = load_artefact(folder)
    predictor = ClassPredictor(model)
    prompts = [routing_input_of_text(task.prompt) for task in everyday_tasks(seed, per_level)]
    found = np.array([predictor.classes(given, model.encode(given)) for given in prompts])
    return TaskClasses(folder.name, found.round(6).tolist())
