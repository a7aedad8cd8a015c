"""`/v1/admin/cache`: the live knobs of the response cache, and what it keeps."""

from typing import Any, Literal

import msgspec
from litestar import get, patch
from litestar.response import Response

from gateway.api.guard import OPERATOR
from gateway.api.knob_patch import KnobPatch
from gateway.api.operations import describe
from gateway.cache.knobs import CacheKnobs
from gateway.cache.stores import MemoryStore
from gateway.knob_values import knob_schemas
from gateway.parts import HttpRequest, parts_of
from quality.knob_log import KnobChange


class CacheShown(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs in force and what each of them is; where answers lie, and how many of how many bytes, as far as they
    lie in the memory of the process that was asked."""

    knobs: CacheKnobs
    schemas: dict[str, dict[str, Any]]
    store: Literal["memory", "redis"]
    entries: int | None
    bytes: int | None


class CacheChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is away, and the change in force nevertheless."""

    knobs: CacheKnobs
    changed: list[KnobChange]
    recorded: bool


_patch = KnobPatch("CachePatch", CacheKnobs)


@get("/cache", operation_class=describe(None, CacheShown), summary="Show the response cache and its knobs")
async def show_cache(request: HttpRequest) -> Response[Any]:
    """The knobs in force, and what is kept."""
    cache = parts_of(request).cache
    memory = cache.store if isinstance(cache.store, MemoryStore) else None
    shown = CacheShown(
        knobs=cache.knobs.in_force,
        schemas=knob_schemas(CacheKnobs),
        store="redis" if memory is None else "memory",
        entries=None if memory is None else len(memory),
        bytes=None if memory is None else memory.bytes,
    )
    return Response(shown, media_type="application/json")


@patch(
    "/cache",
    opt=OPERATOR,
    operation_class=describe(CacheKnobs, CacheChanged),
    summary="Change the knobs of the response cache",
)
async def change_cache(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none does; null is a knob's default. They outlast restarts, and the other
    gateway processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
    knobs = parts_of(request).cache.knobs
    changed, recorded = await _patch.change_file(request, knobs)
    shown = CacheChanged(knobs=knobs.in_force, changed=changed, recorded=recorded)
    return Response(shown, media_type="application/json")
