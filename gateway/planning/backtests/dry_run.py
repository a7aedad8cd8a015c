"""Routing without a server: decisions about prompts with the classifier, probes and knobs of a data folder."""

import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.requests.inference_request import Caller, InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.answering.escalation import ActiveProbes
from gateway.inference.catalogue.class_prior import class_prior
from gateway.inference.routing.classifier_versions import ActiveClassifier
from gateway.inference.routing.knobs import RoutingKnobFile
from gateway.inference.routing.router import RoutingService
from gateway.tenancy.keys.directory import INFERENCE, KnownKeys
from gateway.tenancy.keys.key_commands import name_of_team, shown_key
from gateway.tenancy.keys.key_secrets import keys_of
from inference_core.protocol import SamplingParams
from quality.learning.own_labels import OwnLabels
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.tier import ChatMessage, GenerationRequest


def dry_routing(settings: Settings) -> RoutingService:
    """Without tiers: none is down and nothing is queued, so that the prompt alone decides."""
    catalog = load_catalog(settings.catalog)
    classifier = ActiveClassifier(
        settings.registry_path, catalog.fingerprint, prior=class_prior(catalog, settings.data_path)
    )
    classifier.load()
    knobs = RoutingKnobFile(settings.routing_knobs_path)
    ActiveProbes(settings.probes_path, catalog, knobs, classifier.use_lengths).load()
    return RoutingService(catalog, {}, classifier, settings.quality_target, knobs)


async def follow_labels(routing: RoutingService, engine: AsyncEngine) -> None:
    """Let the version of `routing` follow the labels in the database, as those of a server do."""
    if not isinstance(routing.classifier, ActiveClassifier) or (serving := routing.classifier.serving_or_none) is None:
        return
    for version in serving.versions:
        labels = OwnLabels(
            engine, version.model, version.table, lambda: routing.served.catalog.tier_fingerprints, version.head
        )
        version.own = await labels.catch_up(time.time())


async def caller_named(settings: Settings, catalog: Catalog, engine: AsyncEngine, key: str) -> Caller:
    """Return the caller with the key of this id or name, of the settings or stored. Raises `UnknownSubjectError`."""
    given = keys_of(settings).answers
    if key in given.names:
        return given.caller(key, INFERENCE)
    row = await shown_key(engine, key)
    return KnownKeys(catalog, {}).caller_of(row | {"team_name": await name_of_team(engine, row["team_id"])})


def dry_request(messages: Iterable[ChatMessage], max_tokens: int | None = None, **wishes: Any) -> InferenceRequest:
    """A request for `auto` that is not sent; `wishes` are fields of the InferenceRequest."""
    return InferenceRequest(
        api="chat",
        requested_model="auto",
        generation=GenerationRequest(
            request_id="dry-run",
            sampling=SamplingParams(),
            arrival=time.monotonic(),
            messages=list(messages),
            max_tokens=max_tokens,
        ),
        created_at=time.time(),
        **wishes,
    )
