"""Classifier versions (`/admin/api/artefacts/…`): promote one, roll back, and put one on trial."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import delete, post, put
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from classifier.encoders.hidden_state_encoder import HiddenStateEncoder
from classifier.errors import ArtefactError
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe, endpoint
from gateway.inference.api.parsing import read_body
from gateway.inference.class_prior import tier_prior
from gateway.inference.routing_knobs import objective_of
from gateway.inference.service import Serving, serving_of
from gateway.runtime.cores.hidden_states import require_model
from gateway.tenancy.admin_guard import OPERATOR, actor_of
from quality.comparison.decision_gain import Serving as Objective
from quality.rollout import operator_commands

Reason = Annotated[str, Meta(min_length=1, max_length=1024)]


class VersionOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, recorded with the author."""

    reason: Reason


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let `version` decide about a `share` of the requests."""

    version: Annotated[str, Meta(min_length=1, max_length=64)]
    share: Annotated[float, Meta(gt=0, lt=1)]
    reason: Reason


class VersionsNow(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's state after a command; servers that follow it do so within seconds."""

    current: str
    previous: str | None
    trial: str | None
    share: float


def _of_catalogue(serving: Serving) -> tuple[list[list[float]], Objective]:
    """Return what is known of the served catalogue's tiers by class, and by what utility it serves."""
    catalog, settings = serving.routing.served.catalog, serving.settings
    return tier_prior(catalog, settings.data_path), objective_of(settings, catalog)


async def order_promotion(serving: Serving, actor: str, version: str, reason: str) -> VersionsNow:
    """Let `version` serve. Raises `ApiError` 409 and 503."""
    registry = _registry(serving)
    await check_version(serving, registry, version)
    prior, objective = _of_catalogue(serving)
    await reached(
        operator_commands.promote(
            serving.database, registry, version, actor=actor, reason=reason, prior=prior, serving=objective
        )
    )
    return versions_now(registry)


async def order_rollback(serving: Serving, actor: str, reason: str) -> VersionsNow:
    """Let the previous version serve again. Raises `ApiError` 409 and 503."""
    registry = _registry(serving)
    try:
        await reached(operator_commands.rollback(serving.database, registry, actor=actor, reason=reason))
    except ArtefactError as error:
        raise _refused(error) from error
    return versions_now(registry)


async def order_trial(serving: Serving, actor: str, order: TrialOrder) -> VersionsNow:
    """Start it. Raises `ApiError` 409 and 503."""
    registry = _registry(serving)
    await check_version(serving, registry, order.version)
    prior, objective = _of_catalogue(serving)
    try:
        await reached(
            operator_commands.start_canary(
                serving.database,
                registry,
                order.version,
                order.share,
                actor=actor,
                reason=order.reason,
                prior=prior,
                serving=objective,
            )
        )
    except ArtefactError as error:
        raise _refused(error) from error
    return versions_now(registry)


async def order_end_of_trial(serving: Serving, actor: str, reason: str) -> VersionsNow:
    """End the trial, or the watch. Raises `ApiError` 503."""
    registry = _registry(serving)
    await reached(operator_commands.stop_canary(serving.database, registry, actor=actor, reason=reason))
    return versions_now(registry)


async def check_version(serving: Serving, registry: ArtefactRegistry, version: str) -> None:
    """Raises `ApiError` 409 unless `version` may serve here."""
    catalog = serving.routing.served.catalog

    def check() -> None:
        registry.seed(default_artefact())
        model = accepted_artefact(
            registry.folder(version),
            catalog.fingerprint,
            tiers=len(catalog.tiers),
            must_be_measured=serving.settings.classifier_must_be_measured,
        )
        if isinstance(model.encoder, HiddenStateEncoder):
            require_model(model.encoder.spec, catalog, serving.settings.cache_path)

    try:
        await asyncio.to_thread(check)
    except ArtefactError as error:
        raise _refused(error) from error


def _refused(error: ArtefactError) -> ApiError:
    return ApiError(409, str(error), param="version", code="artefact_refused")


def _registry(serving: Serving) -> ArtefactRegistry:
    return ArtefactRegistry(serving.settings.registry_path)


def versions_now(registry: ArtefactRegistry) -> VersionsNow:
    """Return the serving versions; of an empty registry the shipped one."""
    trial = registry.canary()
    return VersionsNow(
        current=registry.current_or(default_artefact()).name,
        previous=registry.previous(),
        trial=None if trial is None else trial.version,
        share=0.0 if trial is None else trial.share,
    )


@endpoint(post, "/artefacts/{version:str}/promote", VersionOrder, VersionsNow, "Promote a classifier version", OPERATOR)
async def promote_version(request: HttpRequest, version: FromPath[str]) -> Response[Any]:
    """After the checks that a server makes; 409 with the reason of a refusal, and the serving version stays. It is
    watched, and rolled back on evidence of harm."""
    order = await read_body(request, VersionOrder)
    return _answer(await order_promotion(serving_of(request), actor_of(request), version, order.reason))


@endpoint(post, "/artefacts/rollback", VersionOrder, VersionsNow, "Roll the classifier back", OPERATOR)
async def roll_back(request: HttpRequest) -> Response[Any]:
    """Let the previous version serve again; 409 if there is none."""
    order = await read_body(request, VersionOrder)
    return _answer(await order_rollback(serving_of(request), actor_of(request), order.reason))


@endpoint(put, "/trial", TrialOrder, VersionsNow, "Put a classifier version on trial", OPERATOR)
async def begin_trial(request: HttpRequest) -> Response[Any]:
    """It decides a share of the requests, by a hash of their ids; 409 with the reason of a refusal. It ends on evidence
    of harm, but only an operator promotes it."""
    return _answer(await order_trial(serving_of(request), actor_of(request), await read_body(request, TrialOrder)))


@delete("/trial", opt=OPERATOR, status_code=200, operation_class=describe(None, VersionsNow), summary="End the trial")
async def end_trial(request: HttpRequest) -> Response[Any]:
    """Also ends the watch over a promoted version, which goes on serving. Nothing changes if neither is on."""
    return _answer(await order_end_of_trial(serving_of(request), actor_of(request), "ended by an operator"))


def _answer(now: VersionsNow) -> Response[Any]:
    return Response(now, media_type="application/json")


VERSION_ENDPOINTS = (promote_version, roll_back, begin_trial, end_trial)
