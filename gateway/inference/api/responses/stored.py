"""`/v1/responses/{id}`: stored responses, shown and deleted by the tenant whose they are."""

from typing import Any

import msgspec
from litestar import delete, get
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.list_queries import is_id, owned_query
from gateway.inference.api.responses.stored_responses import StoredResponse, StoredResponses
from gateway.inference.service import serving_of
from gateway.tenancy.guard import caller_of

MOST_ITEMS, USUAL_ITEMS = 100, 20


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a deletion."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@get("/responses/{response_id:str}", operation_class=describe(None), summary="Show a stored response")
async def show_response(request: HttpRequest, response_id: FromPath[str]) -> Response[Any]:
    """The body as it was answered. Another tenant's response, and one that was not stored, are not found."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise bad_request(
            "Unsupported parameter stream: a stored response is shown whole.", "stream", "unsupported_parameter"
        )
    return Response((await _stored(request, response_id)).response, media_type="application/json")


@delete(
    "/responses/{response_id:str}",
    status_code=200,
    operation_class=describe(None, ResponseDeleted),
    summary="Delete a stored response",
)
async def delete_response(request: HttpRequest, response_id: FromPath[str]) -> Response[Any]:
    """Immediate and permanent. Responses that went on from it stay, but nothing goes on from them any more."""
    store, tenant = StoredResponses(serving_of(request).database), caller_of(request).tenant
    if not (is_id(response_id) and await reached(store.delete(tenant, response_id))):
        raise _not_found(response_id)
    return Response(ResponseDeleted(id=response_id), media_type="application/json")


@get(
    "/responses/{response_id:str}/input_items",
    operation_class=describe(None, ItemList),
    summary="List what a stored response was made of",
)
async def list_input_items(request: HttpRequest, response_id: FromPath[str]) -> Response[Any]:
    """The items of the request and of the conversation before it, newest first. Query: `after`, `limit` (1 to 100),
    `order` (asc, desc); `include` asks for nothing that is not there."""
    query = owned_query(request, most=MOST_ITEMS, default=USUAL_ITEMS, order=True, ignored=("include", "include[]"))
    stored = await _stored(request, response_id)
    items = [*await _items_before(request, stored), *stored.input]
    if not query.ascending:
        items.reverse()
    if query.after is not None:
        indexes = [index for index, item in enumerate(items) if item["id"] == query.after]
        if not indexes:
            raise bad_request(f"There is no item {query.after!r} in this response.", "after", "invalid_value")
        items = items[indexes[0] + 1 :]
    data = items[: query.limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    answer = ItemList(data=data, first_id=first, last_id=last, has_more=len(items) > query.limit)
    return Response(answer, media_type="application/json")


async def _items_before(request: HttpRequest, stored: StoredResponse) -> list[dict[str, Any]]:
    """The conversation before the response, as far as it is still stored."""
    if stored.previous_response_id is None:
        return []
    store = StoredResponses(serving_of(request).database)
    context = await reached(store.context(stored.tenant, stored.previous_response_id, stored.context_bytes))
    return [] if context is None else context.items


async def _stored(request: HttpRequest, response_id: str) -> StoredResponse:
    if is_id(response_id):
        store, tenant = StoredResponses(serving_of(request).database), caller_of(request).tenant
        stored = await reached(store.find(tenant, response_id))
        if stored is not None:
            return stored
    raise _not_found(response_id)


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        404, f"Response with id {response_id[:64]!r} not found.", param="response_id", code="response_not_found"
    )
