"""`/admin/api/artefacts/…`: promote a classifier version, roll back, and put one on trial."""

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
from gateway.api.access.admin_guard import OPERATOR, actor_of
from gateway.api.inference.parsing import read_body
from gateway.api.operations import describe
from gateway.cores.hidden_states import require_model
from gateway.errors import ApiError
from gateway.protocols.http_request import HttpRequest
from gateway.routing.class_prior import tier_prior
from gateway.serving import serving_of
from gateway.stores.database_reach import reached
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


_order = msgspec.json.Decoder(VersionOrder)
_trial = msgspec.json.Decoder(TrialOrder)


@post(
    "/artefacts/{version:str}/promote",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(VersionOrder, VersionsNow),
    summary="Promote a classifier version",
)
async def promote_version(request: HttpRequest, version: FromPath[str]) -> Response[Any]:
    """After the checks that a server makes; 409 with the reason of a refusal, and the serving version stays. It is
    watched, and rolled back on evidence of harm."""
    order = await read_body(request, _order)
    return _answer(await order_promotion(request, version, order.reason))


async def order_promotion(request: HttpRequest, version: str, reason: str) -> VersionsNow:
    """Let `version` serve. Raises `ApiError` 409 and 503."""
    registry = _registry(request)
    await check_version(request, registry, version)
    serving, actor = serving_of(request), actor_of(request)
    database, prior = serving.database, tier_prior(serving.routing.catalog, serving.settings.data_path)
    await reached(operator_commands.promote(database, registry, version, actor=actor, reason=reason, prior=prior))
    return versions_now(registry)


@post(
    "/artefacts/rollback",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(VersionOrder, VersionsNow),
    summary="Roll the classifier back",
)
async def roll_back(request: HttpRequest) -> Response[Any]:
    """Let the previous version serve again; 409 if there is none."""
    order = await read_body(request, _order)
    return _answer(await order_rollback(request, order.reason))


async def order_rollback(request: HttpRequest, reason: str) -> VersionsNow:
    """Let the previous version serve again. Raises `ApiError` 409 and 503."""
    registry = _registry(request)
    try:
        database, actor = serving_of(request).database, actor_of(request)
        await reached(operator_commands.rollback(database, registry, actor=actor, reason=reason))
    except ArtefactError as error:
        raise _refused(error) from error
    return versions_now(registry)


@put(
    "/trial",
    opt=OPERATOR,
    operation_class=describe(TrialOrder, VersionsNow),
    summary="Put a classifier version on trial",
)
async def begin_trial(request: HttpRequest) -> Response[Any]:
    """It decides a share of the requests, by a hash of their ids; 409 with the reason of a refusal. It ends on evidence
    of harm, but only an operator promotes it."""
    return _answer(await order_trial(request, await read_body(request, _trial)))


async def order_trial(request: HttpRequest, order: TrialOrder) -> VersionsNow:
    """Start it. Raises `ApiError` 409 and 503."""
    registry = _registry(request)
    await check_version(request, registry, order.version)
    serving, actor = serving_of(request), actor_of(request)
    database, prior = serving.database, tier_prior(serving.routing.catalog, serving.settings.data_path)
    try:
        await reached(
            operator_commands.start_canary(
                database, registry, order.version, order.share, actor=actor, reason=order.reason, prior=prior
            )
        )
    except ArtefactError as error:
        raise _refused(error) from error
    return versions_now(registry)


@delete("/trial", opt=OPERATOR, status_code=200, operation_class=describe(None, VersionsNow), summary="End the trial")
async def end_trial(request: HttpRequest) -> Response[Any]:
    """Also ends the watch over a promoted version, which goes on serving. Nothing changes if neither is on."""
    return _answer(await order_end_of_trial(request, "ended by an operator"))


async def order_end_of_trial(request: HttpRequest, reason: str) -> VersionsNow:
    """End the trial, or the watch. Raises `ApiError` 503."""
    registry = _registry(request)
    database, actor = serving_of(request).database, actor_of(request)
    await reached(operator_commands.stop_canary(database, registry, actor=actor, reason=reason))
    return versions_now(registry)


async def check_version(request: HttpRequest, registry: ArtefactRegistry, version: str) -> None:
    """Raises `ApiError` 409 unless `version` may serve here."""
    serving = serving_of(request)
    catalog = serving.routing.catalog

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


def _registry(request: HttpRequest) -> ArtefactRegistry:
    return ArtefactRegistry(serving_of(request).settings.registry_path)


def versions_now(registry: ArtefactRegistry) -> VersionsNow:
    """Return the serving versions; of an empty registry the shipped one."""
    trial = registry.canary()
    return VersionsNow(
        current=registry.current_or(default_artefact()).name,
        previous=registry.previous(),
        trial=None if trial is None else trial.version,
        share=0.0 if trial is None else trial.share,
    )


def _answer(now: VersionsNow) -> Response[Any]:
    return Response(now, media_type="application/json")
