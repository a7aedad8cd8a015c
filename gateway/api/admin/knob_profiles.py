"""`/v1/admin/knobs/profiles`: sets of live knobs for a goal, applied as single changes are, and as one change."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.response import Response
from msgspec import Meta

from gateway.api.access.admin_guard import OPERATOR, actor_of
from gateway.api.admin.knob_patch import KnobsWritten, order_knobs
from gateway.api.admin.replicas import order_replicas
from gateway.api.inference.parsing import read_body
from gateway.api.operations import describe
from gateway.cores.knobs import KnobOrder
from gateway.errors import ApiError
from gateway.knobs.profiles import PROFILES, Profile, profile_named
from gateway.protocols.http_request import HttpRequest
from gateway.running import operations_of
from gateway.serving import serving_of
from quality.store.knob_log import KnobChange
from tiers.catalog.catalog import CPU_CORE


class ProfilesShown(msgspec.Struct, frozen=True, kw_only=True):
    """What each profile sets: knobs of all models of all cores, of routing and of all replicas; null is the value that
    the server was started with."""

    profiles: list[Profile]


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


_decoder = msgspec.json.Decoder(ProfileOrder)


@get("/knobs/profiles", operation_class=describe(None, ProfilesShown), summary="Show the profiles of live knobs")
async def show_profiles() -> Response[Any]:
    """Every profile with the knobs that it sets: `max_num_seqs` at most, `max_num_batched_tokens` at least, where the
    core's memory allows, `itl_objective_ms` at most but half of the start's."""
    return Response(ProfilesShown(profiles=list(PROFILES.values())), media_type="application/json")


@post(
    "/knobs/profiles",
    opt=OPERATOR,
    operation_class=describe(ProfileOrder, ProfileApplied),
    summary="Apply a profile of live knobs",
    status_code=200,
)
async def change_profile(request: HttpRequest) -> Response[Any]:
    """All knobs of the profile change while serving, or none; the profile `catalogue` puts them back. Every change is
    recorded as if it had been made alone."""
    return Response(await apply_profile(request, await read_body(request, _decoder)), media_type="application/json")


async def apply_profile(request: HttpRequest, order: ProfileOrder) -> ProfileApplied:
    """Apply the profile completely, or put back what had changed. Raises `ApiError`: 400 for an unknown profile or a
    value that a core refuses, 503 for a core that is away."""
    profile = profile_named(order.profile)
    reason = f"profile {profile.name}" + (f": {order.reason}" if order.reason else "")
    written: list[KnobsWritten] = []
    async with AsyncExitStack() as undo:
        # The files first: what they refuse is known before a core has changed.
        routing = serving_of(request).routing.knobs
        written.append(await order_knobs(request, routing, profile.routing, reason))
        undo.push_async_callback(_restore_file, request, written[-1].changed, reason)
        if operations_of(request).replica_knobs.sets:
            written.append(await order_replicas(request, profile.replicas, reason))
            undo.push_async_callback(_restore_replicas, request, written[-1].changed, reason)
        for each in await _core_orders(request, profile, order.keep, reason):
            done = await operations_of(request).core_knobs.change(each)
            written.append(KnobsWritten(done.changed, done.recorded))
            undo.push_async_callback(_restore_core, request, each, done.changed)
        undo.pop_all()
    return ProfileApplied(
        profile=profile.name,
        changed=[change for each in written for change in each.changed],
        recorded=all(each.recorded for each in written),
    )


async def _core_orders(request: HttpRequest, profile: Profile, keep: bool, reason: str) -> list[KnobOrder]:
    """Return an order per model, because models are started with different values. Raises `ApiError` 503 unless every
    core answers."""
    knobs = operations_of(request).core_knobs
    if not knobs.cores:
        return []
    there = await knobs.stats()
    if away := [name for name in knobs.cores if name not in there]:
        raise ApiError(503, f"The core {away[0]} is unavailable.", code="core_unavailable")
    return [
        KnobOrder(
            changes=profile.core_changes(model.start, reserved=name != CPU_CORE),
            actor=actor_of(request),
            model=model.name,
            core=name,
            keep=keep,
            reason=reason,
        )
        for name, stats in there.items()
        for model in stats.models
    ]


async def _restore_file(request: HttpRequest, changed: Sequence[KnobChange], reason: str) -> None:
    with suppress(ApiError):
        await order_knobs(request, serving_of(request).routing.knobs, _old_values(changed), _undone(reason))


async def _restore_replicas(request: HttpRequest, changed: Sequence[KnobChange], reason: str) -> None:
    for part in {change.part: None for change in changed}:
        own = [change for change in changed if change.part == part]
        with suppress(ApiError):
            await order_replicas(request, _old_values(own), _undone(reason), part)


async def _restore_core(request: HttpRequest, order: KnobOrder, changed: Sequence[KnobChange]) -> None:
    if changed:
        back = msgspec.structs.replace(order, changes=_old_values(changed), reason=_undone(order.reason or ""))
        with suppress(ApiError):
            await operations_of(request).core_knobs.change(back)


def _undone(reason: str) -> str:
    return f"{reason}: put back, since a part of it was refused"


def _old_values(changed: Sequence[KnobChange]) -> Mapping[str, Any]:
    return {change.knob: change.old_value for change in changed}
