"""`/v1/admin/knobs/cache`: the live knobs of the response cache, and its contents."""

from typing import Any, Literal

from litestar import get
from litestar.response import Response

from gateway.base.knobs import knob_schemas
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.cache.stores import CacheKnobs, MemoryStore
from gateway.operations.api.knob_patch import FileKnobs, change_handler, paths_of
from gateway.operations.running import operations_of


class CacheShown(FileKnobs[CacheKnobs], frozen=True, kw_only=True):
    """Also shows where answers are stored, and number and bytes of those in the memory of the answering process."""

    store: Literal["memory", "redis"]
    entries: int | None
    bytes: int | None


@get(paths_of("cache"), operation_class=describe(None, CacheShown), summary="Show the response cache and its knobs")
async def show_cache(request: HttpRequest) -> Response[Any]:
    """The current knobs and contents."""
    cache = operations_of(request).cache
    memory = cache.store if isinstance(cache.store, MemoryStore) else None
    shown = CacheShown(
        knobs=cache.knobs.active,
        schemas=knob_schemas(CacheKnobs),
        store="redis" if memory is None else "memory",
        entries=None if memory is None else len(memory),
        bytes=None if memory is None else memory.bytes,
    )
    return Response(shown, media_type="application/json")


change_cache = change_handler(
    "cache", "the response cache", CacheKnobs, lambda request: operations_of(request).cache.knobs
)
