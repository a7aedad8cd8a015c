"""Items of the input that are named instead of given: each is an item of a stored response of the same tenant."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database_reach import reached
from gateway.inference.api.responses.schemas import Item, ResponsesRequest
from gateway.inference.api.responses.stored_responses import ContextTooLargeError, StoredItems, StoredResponses
from gateway.inference.serving import Serving
from tiers.consent import Consent

# Items of ours are named after their response.
_ITEM_ID = re.compile(r"[a-z]{2,4}_(resp_[A-Za-z0-9]{1,59})(?:[_-][0-9]{1,6})?\Z")


def is_reference(item: Item) -> bool:
    """Whether the item only names another one; OpenAI allows to leave out its type."""
    if item.type == "item_reference":
        return True
    return item.type == "message" and item.role is None and item.content is None and item.id is not None


async def resolved(
    serving: Serving, tenant: str, body: ResponsesRequest
) -> tuple[ResponsesRequest, str | None, Consent | None, dict[int, dict[str, Any]]]:
    """The request with the items that it names, the conversation that they are of, and what the requests that made them
    consented to; None for both if it names none. Last the named items, by their places.

    Raises `ApiError`: 404 for an item that the tenant has not stored, 400 for more than a request may hold.
    """
    if isinstance(body.input, str) or not any(map(is_reference, body.input)):
        return body, None, None, {}
    named = {place: item.id or "" for place, item in enumerate(body.input) if is_reference(item)}
    stored = await _stored(serving, tenant, list(named.values()))
    for place, item_id in named.items():
        if item_id not in stored.items:
            raise ApiError(
                404,
                f"Item with id {item_id[:64]!r} not found: its response was not stored, or was deleted. Give the item "
                "itself; clients do so with store: false.",
                param=f"input[{place}].id",
                code="item_not_found",
            )
    items = [
        msgspec.convert(stored.items[named[place]], Item) if place in named else item
        for place, item in enumerate(body.input)
    ]
    found = {place: stored.items[item_id] for place, item_id in named.items()}
    return msgspec.structs.replace(body, input=items), stored.conversation, stored.consent, found


async def _stored(serving: Serving, tenant: str, item_ids: Sequence[str]) -> StoredItems:
    of = {item_id: matched[1] for item_id in item_ids if (matched := _ITEM_ID.match(item_id)) is not None}
    most = serving.settings.body_limit
    try:
        return await reached(StoredResponses(serving.database).items(tenant, item_ids, of, most))
    except ContextTooLargeError as error:
        raise bad_request(
            f"The items that input names hold {error.size} bytes or more; {most} (AIO_BODY_LIMIT) fit one request.",
            "input",
            "context_too_large",
        ) from None
