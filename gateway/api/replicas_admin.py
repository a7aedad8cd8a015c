"""`/v1/admin/replicas`: the replicas of remote tiers, and the live knobs of how requests are spread over them."""

import time
from typing import Any

import msgspec
from litestar import get, patch
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.api.generating import read_body
from gateway.api.guard import OPERATOR, actor_of
from gateway.api.operations import describe
from gateway.errors import ApiError
from gateway.parts import HttpRequest, parts_of
from gateway.replica_knobs import REPLICA_KNOBS, BalancingChange, replica_knob_schemas
from quality.knob_log import KnobChange
from tiers.replica_spec import BalancingSpec
from tiers.replica_try import ReplicaStatus

PART = "replicas"


class ReplicatedTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier with replicas: the knobs in force and how each replica fares."""

    tier: int
    knobs: BalancingSpec
    replicas: list[ReplicaStatus]


class ReplicasShown(msgspec.Struct, frozen=True, kw_only=True):
    """All tiers with replicas, and what each knob is."""

    tiers: list[ReplicatedTier]
    schemas: dict[str, dict[str, Any]]


class ReplicasChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is away, and the change in force nevertheless."""

    tiers: list[ReplicatedTier]
    changed: list[KnobChange]
    recorded: bool


_fields: list[Any] = [(name, Any | UnsetType, UNSET) for name in REPLICA_KNOBS]
_Patch = msgspec.defstruct(
    "ReplicasPatch",
    [*_fields, ("tier", int | None, None), ("reason", str | None, None)],
    kw_only=True,
    forbid_unknown_fields=True,
)
_decoder = msgspec.json.Decoder(_Patch)


@get("/replicas", operation_class=describe(None, ReplicasShown), summary="Show replicas and their knobs")
async def show_replicas(request: HttpRequest) -> Response[Any]:
    """By tier with replicas: the knobs in force; each replica's requests in flight, latency, failures, ejection."""
    shown = ReplicasShown(tiers=_shown(request), schemas=replica_knob_schemas())
    return Response(shown, media_type="application/json")


@patch(
    "/replicas",
    opt=OPERATOR,
    operation_class=describe(BalancingSpec, ReplicasChanged),
    summary="Change the knobs of replicas",
)
async def change_replicas(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none does, of one `tier` or of all; null is the catalogue's value. They
    outlast restarts, and the other gateway processes of this data folder follow."""
    body: Any = await read_body(request, _decoder)
    parts, actor = parts_of(request), actor_of(request)
    given = {name: getattr(body, name) for name in REPLICA_KNOBS}
    wanted = {name: value for name, value in given.items() if value is not UNSET}
    numbers = list(parts.replica_knobs.sets) if body.tier is None else [body.tier]
    try:
        made = parts.replica_knobs.change(numbers, wanted)
    except ApiError as error:
        name = error.body.param or ""
        part = PART if body.tier is None else f"{PART} of tier {body.tier}"
        await parts.core_knobs.write_down(
            [_change(actor, part, name, (None, wanted.get(name)), body.reason, str(error))]
        )
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be written down: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(actor, f"{PART} of tier {change.tier.number}", name, values, body.reason)
        for change in made
        for name, values in _differences(change).items()
    ]
    recorded = await parts.core_knobs.write_down(changed)
    shown = ReplicasChanged(tiers=_shown(request), changed=changed, recorded=recorded)
    return Response(shown, media_type="application/json")


def _shown(request: HttpRequest) -> list[ReplicatedTier]:
    sets = parts_of(request).replica_knobs.sets
    return [
        ReplicatedTier(tier=number, knobs=tier.balancing, replicas=tier.replicas()) for number, tier in sets.items()
    ]


def _differences(change: BalancingChange) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (getattr(change.before, name), getattr(change.after, name)) for name in REPLICA_KNOBS}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _change(
    actor: str, part: str, knob: str, values: tuple[Any, Any], reason: str | None, refused: str | None = None
) -> KnobChange:
    old, new = values
    return KnobChange(
        created_at=time.time(),
        actor=actor,
        part=part,
        model=None,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=reason,
        kept=True,
        refused=refused,
    )
