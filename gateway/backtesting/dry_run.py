"""Routing without a server: decisions about prompts with the classifier, probes and knobs of a data folder."""

import time
from collections.abc import Iterable
from typing import Any

from gateway.answering.active_probes import ActiveProbes
from gateway.requests.inference_request import InferenceRequest
from gateway.routing.active_classifier import ActiveClassifier
from gateway.routing.class_prior import class_prior
from gateway.routing.knobs import RoutingKnobFile
from gateway.routing.router import RoutingService
from gateway.settings import Settings
from inference_core.protocol import SamplingParams
from tiers.catalog.load import load_catalog
from tiers.tier import ChatMessage


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


def dry_request(messages: Iterable[ChatMessage], **wishes: Any) -> InferenceRequest:
    """A request for `auto` that is not sent; `wishes` are fields of the InferenceRequest."""
    return InferenceRequest(
        request_id="dry-run",
        api="chat",
        requested_model="auto",
        sampling=SamplingParams(),
        arrival=time.monotonic(),
        created_at=time.time(),
        messages=list(messages),
        **wishes,
    )
