"""Does routing pay here? The verdicts by all probes, in numbers and in words. And whose labels the learning figures
are of: the version that serves, the catalogue's tiers, the default setting."""

import msgspec
import numpy as np

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import exchange_of
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.settings import Settings
from gateway.base.stores.database import reached
from gateway.inference.class_prior import class_prior
from gateway.operations.running import Operations
from quality.comparison.routing_probes import WorthFound
from quality.comparison.routing_worth import RoutingWorth, in_words
from quality.learning.learning import LabelSource
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of routing for one key, or for the catalogue: None without probes."""

    name: str
    sentence: str
    """The worth in words."""
    worth: RoutingWorth | None


class WorthShown(msgspec.Struct, frozen=True, kw_only=True):
    """Whether routing pays. Each key has bounds of its own; they are not bounds over all keys at once."""

    constant: str
    """The routing knob."""
    catalogue: Said
    keys: list[Said]


async def worth_shown(operations: Operations) -> WorthShown:
    """Return the verdicts by the probes that are stored now. Raises `ApiError` 503."""
    found = await reached(operations.constant.found())
    return worth_said(found, operations.serving.routing.knobs.active.constant)


def worth_last(operations: Operations) -> WorthShown | None:
    """Return the verdicts of the last look, without asking the database; None before the first and with one tier."""
    found = operations.constant.last
    return None if found is None else worth_said(found, operations.serving.routing.knobs.active.constant)


def worth_said(worth: WorthFound, constant: str) -> WorthShown:
    """Put verdicts into words; `constant` is the routing knob."""
    return WorthShown(
        constant=constant,
        catalogue=Said(name="all keys", sentence=in_words(worth.catalogue, constant), worth=worth.catalogue),
        keys=[Said(name=one.name, sentence=in_words(one.worth, constant), worth=one.worth) for one in worth.keys],
    )


def label_source(model: OutcomeModel, catalog: Catalog, settings: Settings, target: float | None) -> LabelSource:
    """Of `model` for the tiers of `catalog`; quality `target` None: the default setting."""
    return LabelSource(
        model=model,
        tiers=tuple(catalog.tier_fingerprints),
        prior=np.ascontiguousarray(class_prior(catalog, settings.data_path).p),
        exchange=exchange_of(DEFAULT_TARGET if target is None else target),
        keys_are_tenants=settings.keys_are_tenants,
    )


def stored_label_source(settings: Settings) -> LabelSource:
    """Of the registry's current version, for the catalogue of `settings`. Raises `ArtefactError` and
    `CatalogError`."""
    catalog, registry = load_catalog(settings.catalog), ArtefactRegistry(settings.registry_path)
    folder = registry.current_or(default_artefact())
    return label_source(load_artefact(folder, catalog.fingerprint), catalog, settings, None)
