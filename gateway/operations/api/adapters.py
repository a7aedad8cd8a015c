"""`/v1/admin/adapters`: LoRA adapters for operators, loaded and unloaded while the core serves."""

from typing import Annotated, Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response
from msgspec import Meta

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.runtime.cores.adapters import ModelAdapters
from gateway.tenancy.access.admin_guard import actor_of
from inference_core.protocol import AdapterInfo


class AdaptersShown(msgspec.Struct, frozen=True, kw_only=True):
    """By model of the core."""

    models: dict[str, ModelAdapters]


class AdapterOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve the PEFT folder `path`, on the core's machine, as `model:name`."""

    model: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(max_length=64)]
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class AdaptersNow(msgspec.Struct, frozen=True, kw_only=True):
    """The model's adapters after a change."""

    model: str
    adapters: list[AdapterInfo]


@get("/adapters", operation_class=describe(None, AdaptersShown), summary="Show the adapters")
async def show_adapters(request: HttpRequest) -> Response[Any]:
    """The adapters of every model, which of them are resident, and how many were evicted."""
    models = await serving_of(request).core_adapters.by_model()
    return Response(AdaptersShown(models=models), media_type="application/json")


@post("/adapters", status_code=200, operation_class=describe(AdapterOrder, AdaptersNow), summary="Load an adapter")
async def load_adapter(request: HttpRequest) -> Response[Any]:
    """Read and check a PEFT folder; requests may name `model:name` from now on."""
    order = await read_body(request, AdapterOrder)
    actor = actor_of(request)
    adapters = await serving_of(request).core_adapters.load(order.model, order.name, order.path, actor)
    return Response(AdaptersNow(model=order.model, adapters=adapters), media_type="application/json")


@delete(
    "/adapters/{model:str}/{name:str}",
    status_code=200,
    operation_class=describe(None, AdaptersNow),
    summary="Unload an adapter",
)
async def unload_adapter(request: HttpRequest, model: FromPath[str], name: FromPath[str]) -> Response[Any]:
    """Accept no more requests for it; it is unloaded after the last one has ended."""
    actor = actor_of(request)
    adapters = await serving_of(request).core_adapters.unload(model, name, actor)
    return Response(AdaptersNow(model=model, adapters=adapters), media_type="application/json")
