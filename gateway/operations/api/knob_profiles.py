"""`/v1/admin/knobs/profiles`: sets of live knobs for a goal, applied as single changes are, and as one change."""

from typing import Any

import msgspec
from litestar import get, post
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.running import operations_of
from gateway.operations.usecases.knob_profiles import ProfileApplied, ProfileOrder, apply_profile
from gateway.runtime.cores.knob_profiles import PROFILES, Profile
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of


class ProfilesShown(msgspec.Struct, frozen=True, kw_only=True):
    """What each profile sets: knobs of all models of all cores, of routing and of all replicas; null is the value that
    the server was started with."""

    profiles: list[Profile]


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
    order = await read_body(request, ProfileOrder)
    done = await apply_profile(operations_of(request), actor_of(request), order)
    return Response(done, media_type="application/json")
