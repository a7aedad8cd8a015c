"""Classifier versions (`/admin/api/artefacts/…`): promote one, roll back, and put one on trial."""

import asyncio
from typing import Annotated

import msgspec
from litestar import delete, post, put
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from classifier.encoders.hidden_state_encoder import HiddenStateEncoder
from classifier.errors import ArtefactError
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.admin.resource import Admin
from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.inference.class_prior import tier_prior
from gateway.inference.routing_knobs import objective_of
from gateway.inference.service import Serving
from gateway.runtime.cores.hidden_states import require_model
from gateway.tenancy.admin_guard import OPERATOR
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


@post("/artefacts/{version:str}/promote", opt=OPERATOR, status_code=200, summary="Promote a classifier version")
async def promote_version(version: FromPath[str], data: JSONBody[VersionOrder], admin: Admin) -> VersionsNow:
    """After the checks that a server makes; 409 with the reason of a refusal, and the serving version stays. It is
    watched, and rolled back on evidence of harm."""
    return await order_promotion(admin.serving, admin.actor, version, data.reason)


@post("/artefacts/rollback", opt=OPERATOR, status_code=200, summary="Roll the classifier back")
async def roll_back(data: JSONBody[VersionOrder], admin: Admin) -> VersionsNow:
    """Let the previous version serve again; 409 if there is none."""
    return await order_rollback(admin.serving, admin.actor, data.reason)


@put("/trial", opt=OPERATOR, summary="Put a classifier version on trial")
async def begin_trial(data: JSONBody[TrialOrder], admin: Admin) -> VersionsNow:
    """It decides a share of the requests, by a hash of their ids; 409 with the reason of a refusal. It ends on evidence
    of harm, but only an operator promotes it."""
    return await order_trial(admin.serving, admin.actor, data)


@delete("/trial", opt=OPERATOR, status_code=200, summary="End the trial")
async def end_trial(admin: Admin) -> VersionsNow:
    """Also ends the watch over a promoted version, which goes on serving. Nothing changes if neither is on."""
    return await order_end_of_trial(admin.serving, admin.actor, "ended by an operator")


VERSION_ENDPOINTS = (promote_version, roll_back, begin_trial, end_trial)
