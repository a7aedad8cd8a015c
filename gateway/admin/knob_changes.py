"""Changes of live knobs, of files and of replicas: carried out, and recorded with their author. A profile is applied
to routing, replicas and cores as one change, or put back.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta

from gateway.base.errors import ApiError
from gateway.base.knobs import KnobFile
from gateway.inference.replica_knobs import ReplicaKnobs
from gateway.operations.running import Operations
from gateway.runtime.cores.knob_profiles import Profile, profile_named
from gateway.runtime.cores.knobs import KnobOrder
from quality.store.database import MOST_INTEGER
from quality.store.queries import KnobChange
from tiers.catalog.catalog import CPU_CORE

REPLICAS = "replicas"
BeforeChange = Annotated[
    int | None, QueryParameter(ge=1, le=MOST_INTEGER, description="The id of the last change of the previous page.")
]


class PartChange(NamedTuple):
    """The knobs of a part, named as the history names it, before and after a change."""

    part: str
    before: msgspec.Struct
    after: msgspec.Struct


class KnobsWritten(NamedTuple):
    """What changed, and whether the database has it: it applies and is logged even while the database is down."""

    changed: list[KnobChange]
    recorded: bool


async def order_knobs(
    operations: Operations, actor: str, knobs: KnobFile[Any], wanted: Mapping[str, Any], reason: str | None
) -> KnobsWritten:
    """Change the knobs of a file to `wanted`. Raises `ApiError`."""
    part = knobs.part
    return await carry_out_order(
        operations, actor, wanted, reason, part, lambda named: [PartChange(part, *knobs.change(named))]
    )


async def carry_out_order(
    operations: Operations,
    actor: str,
    wanted: Mapping[str, Any],
    reason: str | None,
    part: str,
    change: Callable[[Mapping[str, Any]], Sequence[PartChange]],
) -> KnobsWritten:
    """Apply `change` to `wanted`, and record that or the refusal in the history of `part`. Raises `ApiError`."""
    knobs = operations.core_knobs
    try:
        made = change(wanted)
    except ApiError as error:
        name = error.body.param or ""
        refused = _change(actor, part, name, None, wanted.get(name), reason, str(error))
        await knobs.write_down([refused])
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be saved: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(
            actor, part_change.part, name, getattr(part_change.before, name), getattr(part_change.after, name), reason
        )
        for part_change in made
        for name in part_change.after.__struct_fields__
        if getattr(part_change.before, name) != getattr(part_change.after, name)
    ]
    return KnobsWritten(changed, await knobs.write_down(changed))


def _change(
    actor: str, part: str, knob: str, old: Any, new: Any, reason: str | None, refused: str | None = None
) -> KnobChange:
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


async def order_replicas(
    operations: Operations, actor: str, wanted: Mapping[str, Any], reason: str, part: str = REPLICAS
) -> KnobsWritten:
    """Change the knobs of all tiers with replicas, or of the tier called `part`, without a body. Raises `ApiError`."""
    knobs = operations.replica_knobs
    numbers = [number for number in knobs.sets if part in (REPLICAS, part_of(number))]
    return await carry_out_order(
        operations, actor, wanted, reason, part, lambda named: replica_changes(knobs, numbers, named)
    )


def replica_changes(knobs: ReplicaKnobs, numbers: list[int], wanted: Mapping[str, Any]) -> list[PartChange]:
    """Change the knobs of these tiers, all or none; return those of each. Raises `ApiError`."""
    return [
        PartChange(part_of(tier_change.tier.number), tier_change.before, tier_change.after)
        for tier_change in knobs.change(numbers, wanted)
    ]


def part_of(tier: int) -> str:
    """Return what the history calls the replicas of a tier."""
    return f"{REPLICAS} of tier {tier}"


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile by name."""

    profile: str
    keep: bool = False
    """Whether the profile holds across restarts of the cores, too."""
    reason: Annotated[str, Meta(max_length=900)] | None = None
    """Recorded with the changes."""


class ProfileApplied(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, from what to what."""

    profile: str
    changed: list[KnobChange]
    recorded: bool
    """False while the database is down, but the changes apply."""


async def apply_profile(operations: Operations, actor: str, order: ProfileOrder) -> ProfileApplied:
    """Apply the profile completely, or put back what had changed. Raises `ApiError`: 400 for an unknown profile or a
    value that a core refuses, 503 for a core that is away."""
    profile = profile_named(order.profile)
    reason = f"profile {profile.name}" + (f": {order.reason}" if order.reason else "")
    written: list[KnobsWritten] = []
    async with AsyncExitStack() as undo:
        # The files first: what they refuse is known before a core has changed.
        routing = operations.serving.routing.knobs
        written.append(await order_knobs(operations, actor, routing, profile.routing, reason))
        undo.push_async_callback(_restore_file, operations, actor, written[-1].changed, reason)
        if operations.replica_knobs.sets:
            written.append(await order_replicas(operations, actor, profile.replicas, reason))
            undo.push_async_callback(_restore_replicas, operations, actor, written[-1].changed, reason)
        for each in await _core_orders(operations, actor, profile, order.keep, reason):
            done = await operations.core_knobs.change(each)
            written.append(KnobsWritten(done.changed, done.recorded))
            undo.push_async_callback(_restore_core, operations, each, done.changed)
        undo.pop_all()
    return ProfileApplied(
        profile=profile.name,
        changed=[change for each in written for change in each.changed],
        recorded=all(each.recorded for each in written),
    )


async def _core_orders(
    operations: Operations, actor: str, profile: Profile, keep: bool, reason: str
) -> list[KnobOrder]:
    """Return an order per model: models start with different values. Raises `ApiError` 503 unless all cores answer."""
    knobs = operations.core_knobs
    if not knobs.cores:
        return []
    there = await knobs.stats()
    if away := [name for name in knobs.cores if name not in there]:
        raise ApiError(503, f"The core {away[0]} is unavailable.", code="core_unavailable")
    return [
        KnobOrder(
            changes=profile.core_changes(model.start, reserved=name != CPU_CORE),
            actor=actor,
            model=model.name,
            core=name,
            keep=keep,
            reason=reason,
        )
        for name, stats in there.items()
        for model in stats.models
    ]


async def _restore_file(operations: Operations, actor: str, changed: Sequence[KnobChange], reason: str) -> None:
    with suppress(ApiError):
        await order_knobs(operations, actor, operations.serving.routing.knobs, _old_values(changed), _undone(reason))


async def _restore_replicas(operations: Operations, actor: str, changed: Sequence[KnobChange], reason: str) -> None:
    for part in {change.part: None for change in changed}:
        own = [change for change in changed if change.part == part]
        with suppress(ApiError):
            await order_replicas(operations, actor, _old_values(own), _undone(reason), part)


async def _restore_core(operations: Operations, order: KnobOrder, changed: Sequence[KnobChange]) -> None:
    if changed:
        back = msgspec.structs.replace(order, changes=_old_values(changed), reason=_undone(order.reason or ""))
        with suppress(ApiError):
            await operations.core_knobs.change(back)


def _undone(reason: str) -> str:
    return f"{reason}: put back, since a part of it was refused"


def _old_values(changed: Sequence[KnobChange]) -> Mapping[str, Any]:
    return {change.knob: change.old_value for change in changed}
