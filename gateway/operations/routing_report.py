"""The report on routing, of a running gateway or of a data folder."""

import numpy as np
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.quality_setting import DEFAULT_TARGET, target_of
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import ENOUGH
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier, LoadedVersion, rule_of
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.inference.service import Serving
from gateway.operations.labels.loop_setup import sampling_settings
from gateway.operations.running import Operations
from quality.comparison.routing_probes import WorthAsked, WorthRecord
from quality.estimates.targets import PROMPT_TOKENS, Predicted, even_mix
from quality.learning.learning import LabelSource, LearningRecord
from quality.routing_report import Period, RoutingReport, Served, routing_report
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import predicted_costs


async def stored_report(engine: AsyncEngine, settings: Settings, period: Period) -> RoutingReport:
    """Return the report on a data folder, for its current classifier and its knobs. Raises `ArtefactError`,
    `CatalogError` and the database's errors."""
    catalog, knobs = load_catalog(settings.catalog), RoutingKnobFile(settings.routing_knobs_path).active
    target = target_of(settings.quality_target if knobs.quality_target is None else knobs.quality_target)
    folder = ArtefactRegistry(settings.registry_path).current_or(default_artefact())
    model = load_artefact(folder, catalog.fingerprint)
    served = Served(
        catalog=catalog,
        data_path=settings.data_path,
        mix=class_mix(LoadedVersion(model, prior=class_prior(catalog, settings.data_path)), catalog, settings),
        target=DEFAULT_TARGET if target is None else target,
        constant=knobs.constant,
        sampling=sampling_settings(settings, catalog) if settings.monitor else None,
    )
    asked = WorthAsked(tuple(catalog.tier_fingerprints), served.target, knobs.constant_worth)
    worth = await WorthRecord(engine).of(asked)
    learning = await LearningRecord(engine).of(label_source(model, catalog, settings))
    return await routing_report(engine, served, period, worth, learning)


async def gateway_report(operations: Operations, period: Period, *, wait_seconds: float | None = None) -> RoutingReport:
    """Return the report on a running gateway. `wait_seconds`: for what was learned, which is left out while it is
    computed; None waits until it is. Raises the database's errors."""
    serving = operations.serving
    routing, settings = serving.routing, serving.settings
    catalog, version = routing.served.catalog, serving_version(serving)
    served = Served(
        catalog=catalog,
        data_path=settings.data_path,
        mix=class_mix(version, catalog, settings),
        target=rule_of(routing.classifier, "", routing.active_target).quality_target,
        constant=routing.knobs.active.constant,
        sampling=None if operations.quality_loop is None else sampling_settings(settings, catalog),
    )
    learning = None
    if version is not None:
        source = label_source(version.model, catalog, settings)
        learned = operations.learning
        learning = await (learned.of(source) if wait_seconds is None else learned.at_hand(source, wait_seconds))
    worth = await operations.constant.shown()
    return await routing_report(serving.database, served, period, worth, learning)


def serving_version(serving: Serving) -> LoadedVersion | None:
    """Return the version of the classifier that serves; None where there is none."""
    classifier = serving.routing.classifier
    versions = classifier.serving_or_none if isinstance(classifier, ActiveClassifier) else None
    return None if versions is None else versions.current


def class_mix(version: LoadedVersion | None, catalog: Catalog, settings: Settings) -> Predicted:
    """Return what `version` knows of the tiers by complexity class; None: what the catalogue says of them."""
    costs = predicted_costs(catalog, PROMPT_TOKENS, None)
    if version is None:
        return even_mix(class_prior(catalog, settings.data_path).p, costs, ENOUGH)
    return even_mix(version.table, costs, ENOUGH if version.kind == "prior" else 1.0)


def label_source(model: OutcomeModel, catalog: Catalog, settings: Settings) -> LabelSource:
    """Return whose labels the learning curves are of: those of `model` for the tiers of `catalog`."""
    return LabelSource(
        model=model,
        tiers=tuple(catalog.tier_fingerprints),
        prior=np.ascontiguousarray(class_prior(catalog, settings.data_path).p),
        keys_are_tenants=settings.keys_are_tenants,
    )
