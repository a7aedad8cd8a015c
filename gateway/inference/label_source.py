"""Whose labels the learning figures are of: the version that serves, the catalogue's tiers, the default setting."""

from pathlib import Path

import numpy as np

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import exchange_of
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from gateway.inference.class_prior import class_prior
from quality.learning.learning import LabelSource
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog


def label_source(model: OutcomeModel, catalog: Catalog, data_path: Path, target: float | None) -> LabelSource:
    """Of `model` for the tiers of `catalog`; quality `target` None: the default setting."""
    return LabelSource(
        model=model,
        tiers=tuple(catalog.tier_fingerprints),
        prior=np.ascontiguousarray(class_prior(catalog, data_path).p),
        exchange=exchange_of(DEFAULT_TARGET if target is None else target),
    )


def stored_label_source(settings: Settings) -> LabelSource:
    """Of the registry's current version, for the catalogue of `settings`. Raises `ArtefactError` and
    `CatalogError`."""
    catalog, registry = load_catalog(settings.catalog), ArtefactRegistry(settings.registry_path)
    folder = registry.current_or(default_artefact())
    return label_source(load_artefact(folder, catalog.fingerprint), catalog, settings.data_path, None)
