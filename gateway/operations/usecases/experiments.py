"""Experiments: split the traffic between two versions or tiers, and end the split."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, SplitBy
from classifier.registry.registry import ArtefactRegistry
from gateway.base.errors import ApiError, bad_request
from gateway.base.settings import Settings
from gateway.base.stores.database import reached
from gateway.inference.catalogue.class_prior import tier_prior
from gateway.inference.routing.knobs import objective_of
from gateway.inference.service import Serving
from gateway.operations.usecases.experiment_plan import with_guardrails
from gateway.operations.usecases.versions import Reason, check_version
from quality.rollout.experiments import ExperimentError, Experiments, Plan
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierNumber

MOST_PROBES = 1_000_000
Margin = Annotated[float, Meta(ge=0, le=1e6)]


class ArmOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a `version` of the classifier that decides, or the `tier` that answers."""

    version: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    tier: TierNumber | None = None


class GuardrailOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what share of arm a's cost per request, time to the first token and time to the end arm b's may exceed it; the
    experiment ends once one exceeds it by more. null: no guardrail. Left out: 1.0, or, where both arms are tiers and
    b's is dearer or slower by the catalogue, twice what that lets expect."""

    cost: Margin | UnsetType | None = UNSET
    ttft: Margin | UnsetType | None = UNSET
    e2e: Margin | UnsetType | None = UNSET


class ExperimentOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Split a `share` of the traffic between two arms, half each; `level` and `most_probes` say when it ends. `by`:
    what keeps its arm as long as the experiment runs: the `user` (where none is named the conversation, else the
    request), the `key` (likewise), the `conversation`, or the `request` alone."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    share: Annotated[float, Meta(gt=0, le=1)]
    a: ArmOrder
    b: ArmOrder
    reason: Reason
    by: SplitBy = "user"
    level: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    most_probes: Annotated[int, Meta(ge=1, le=MOST_PROBES)] = 1000
    guardrails: GuardrailOrder = GuardrailOrder()


async def begin_experiment(serving: Serving, actor: str, order: ExperimentOrder) -> str:
    """Start the experiment and return its id. Raises `ApiError` 400, 409 and 503."""
    registry = ArtefactRegistry(serving.settings.registry_path)
    plan = _plan(order, serving.routing.served.catalog, serving.settings)
    for arm in (plan.a, plan.b):
        if arm.version is not None:
            await check_version(serving, registry, arm.version)
    experiments = Experiments(serving.database, registry)
    try:
        return await reached(experiments.start(order.name, plan, actor=actor, reason=order.reason))
    except (ExperimentError, ArtefactError) as error:
        raise ApiError(409, str(error), code="experiment_refused") from error


async def end_experiment(serving: Serving, actor: str, experiment_id: str, reason: str) -> None:
    """End it. Raises `ApiError` 404 and 503."""
    experiments = Experiments(serving.database, ArtefactRegistry(serving.settings.registry_path))
    if not await reached(experiments.stop(experiment_id, actor=actor, reason=reason)):
        raise ApiError(404, f"No experiment {experiment_id[:64]!r} is running.", code="experiment_not_running")


def _plan(order: ExperimentOrder, catalog: Catalog, settings: Settings) -> Plan:
    tiers, prior = len(catalog.tiers), tier_prior(catalog, settings.data_path)
    try:
        a, b = (Arm(version=arm.version, tier=arm.tier) for arm in (order.a, order.b))
        plan = Plan(
            share=order.share,
            a=a,
            b=b,
            tiers=tiers,
            level=order.level,
            most_probes=order.most_probes,
            prior=prior,
            serving=objective_of(settings, catalog),
            by=order.by,
        )
        return with_guardrails(plan, catalog, msgspec.to_builtins(order.guardrails))
    except ValueError as error:
        raise bad_request(f"{error}.", "a", "invalid_value") from error
