"""Profiles of live knobs: applied to routing, replicas and cores as one change, or put back."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.base.errors import ApiError
from gateway.operations.running import Operations
from gateway.operations.usecases.knobs import KnobsWritten, order_knobs, order_replicas
from gateway.runtime.cores.knob_profiles import Profile, profile_named
from gateway.runtime.cores.knobs import KnobOrder
from quality.store.queries import KnobChange
from tiers.catalog.catalog import CPU_CORE


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile by name; `keep`: across restarts of the cores, too. A `reason` is recorded with the changes."""

    profile: str
    keep: bool = False
    reason: Annotated[str, Meta(max_length=900)] | None = None


class ProfileApplied(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, from what to what; `recorded` is False while the database is down, but the changes apply."""

    profile: str
    changed: list[KnobChange]
    recorded: bool


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
    """Return an order per model, because models are started with different values. Raises `ApiError` 503 unless every
    core answers."""
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
