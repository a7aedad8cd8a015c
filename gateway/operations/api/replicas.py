"""`/v1/admin/knobs/replicas`: the replicas of remote tiers, and the live knobs of their load balancing."""

from typing import Any

import msgspec
from litestar import get, patch
from litestar.response import Response

from gateway.base.knobs import knob_schemas
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.api.knob_patch import KnobPatch, paths_of
from gateway.operations.running import operations_of
from gateway.operations.usecases.knobs import REPLICAS, carry_out_order, part_of, replica_changes
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.store.queries import KnobChange
from tiers.attempt import ReplicaStatus
from tiers.catalog.replica_spec import BalancingSpec


class ReplicatedTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier with replicas: the current knobs and each replica's state."""

    tier: int
    knobs: BalancingSpec
    replicas: list[ReplicaStatus]


class ReplicasShown(msgspec.Struct, frozen=True, kw_only=True):
    """All tiers with replicas, and descriptions of the knobs."""

    tiers: list[ReplicatedTier]
    schemas: dict[str, dict[str, Any]]


class ReplicasChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is down, but the change applies."""

    tiers: list[ReplicatedTier]
    changed: list[KnobChange]
    recorded: bool


_patch = KnobPatch("ReplicasPatch", BalancingSpec, ("tier", int | None, None))


@get(paths_of("replicas"), operation_class=describe(None, ReplicasShown), summary="Show replicas and their knobs")
async def show_replicas(request: HttpRequest) -> Response[Any]:
    """By tier with replicas: the current knobs; each replica's requests in flight, latency, failures, ejection."""
    shown = ReplicasShown(tiers=_shown(request), schemas=knob_schemas(BalancingSpec))
    return Response(shown, media_type="application/json")


@patch(
    paths_of("replicas"),
    opt=OPERATOR,
    operation_class=describe(BalancingSpec, ReplicasChanged),
    summary="Change the knobs of replicas",
)
async def change_replicas(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none, of one `tier` or of all; null restores the catalogue's value. They
    survive restarts, and the other gateway processes of this data folder follow."""
    body, operations = await _patch.read(request), operations_of(request)
    knobs = operations.replica_knobs
    numbers = list(knobs.sets) if body.tier is None else [body.tier]
    changed, recorded = await carry_out_order(
        operations,
        actor_of(request),
        _patch.wanted(body),
        body.reason,
        REPLICAS if body.tier is None else part_of(body.tier),
        lambda wanted: replica_changes(knobs, numbers, wanted),
    )
    shown = ReplicasChanged(tiers=_shown(request), changed=changed, recorded=recorded)
    return Response(shown, media_type="application/json")


def _shown(request: HttpRequest) -> list[ReplicatedTier]:
    sets = operations_of(request).replica_knobs.sets
    return [
        ReplicatedTier(tier=number, knobs=tier.balancing, replicas=tier.replicas()) for number, tier in sets.items()
    ]
