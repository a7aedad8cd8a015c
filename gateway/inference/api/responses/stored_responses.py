"""Responses kept in the database, so that a later request, on any gateway process, goes on from one by its id, or names
its items instead of giving them: each is an item of a stored response of the same tenant."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, exists, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.inference.service import Serving
from migrations.tables.api_objects import stored_responses
from migrations.tables.audit import erasures
from quality.records.record import consent_of
from quality.store.queries import exclude_erasures
from tiers.catalog.consent import ALL, Consent
from tiers.dialects.responses_schemas import Item, ResponsesRequest

# As many as the messages of a conversation may be, so that a cycle or a very long chain ends somewhere.
MOST_IN_CHAIN = 2048
# Whole responses are read for the items that are wanted of them.
_RESPONSES_AT_ONCE = 16


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response and the items that its request gave, without those of the responses before it."""

    response_id: str
    key_id: str | None
    tenant: str
    previous_response_id: str | None
    conversation: str
    """The id by which routing recognises the conversation."""
    context_bytes: int
    """Size as JSON of the items of this response and of all before it."""
    input: Any
    response: Any
    created_at: float
    """UTC epoch seconds."""
    consent: Consent = ALL
    """The consent of its request."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the requests that stored something."""

    consent: Consent = ALL
    """What all of them consented to; it binds the request that goes on."""


class StoredContext(_Stored, frozen=True, kw_only=True):
    """What a request that names a previous response goes on from."""

    response_id: str
    conversation: str
    size: int
    items: list[dict[str, Any]]
    """Inputs and outputs, oldest first."""


class StoredItems(_Stored, frozen=True, kw_only=True):
    """Items of responses by their ids, and the last response's conversation."""

    items: dict[str, dict[str, Any]]
    conversation: str | None


class ContextTooLargeError(ValueError):
    """The conversation holds `size` bytes, more than allowed."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the conversation holds {size} bytes")
        self.size = size


class StoredResponses:
    """The stored responses of all tenants."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, response: StoredResponse) -> bool:
        """Store it durably. Returns False for a user who was erased after the response had started."""
        row = msgspec.structs.asdict(response)
        columns = stored_responses.c
        erased = exists().where(erasures.c.key_id == response.key_id, erasures.c.erased_at >= response.created_at)
        values = [bindparam(name, value, columns[name].type) for name, value in row.items()]
        unless_erased = insert(stored_responses).from_select(list(row), select(*values).where(~erased))
        async with self._engine.begin() as connection:
            await exclude_erasures(connection)
            return bool((await connection.execute(unless_erased)).rowcount)

    async def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        async with self._engine.connect() as connection:
            row = (await connection.execute(select(stored_responses).where(*_mine(tenant, response_id)))).first()
        return None if row is None else StoredResponse(**dict(row._mapping) | {"consent": consent_of(row.consent)})

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete the response and its own items; return whether the tenant had it."""
        async with self._engine.begin() as connection:
            mine = delete(stored_responses).where(*_mine(tenant, response_id))
            return bool((await connection.execute(mine)).rowcount)

    async def context(self, tenant: str, response_id: str, most_bytes: int) -> StoredContext | None:
        """Return the conversation up to and including the response; None if it, or one before it, is not stored.

        Raises `ContextTooLargeError`, before anything large is read, if it holds more than `most_bytes`.
        """
        columns = stored_responses.c
        head = select(columns.context_bytes, columns.conversation).where(*_mine(tenant, response_id))
        chain = (
            select(columns.response_id, columns.previous_response_id, literal(0).label("steps"))
            .where(*_mine(tenant, response_id))
            .cte("chain", recursive=True)
        )
        earlier = (
            select(columns.response_id, columns.previous_response_id, chain.c.steps + 1)
            .where(columns.response_id == chain.c.previous_response_id)
            .where(columns.tenant == tenant, chain.c.steps < MOST_IN_CHAIN)
        )
        chain = chain.union_all(earlier)
        rows = (
            select(columns.previous_response_id, columns.input, columns.response, columns.consent)
            .join(chain, chain.c.response_id == columns.response_id)
            .order_by(chain.c.steps.desc())
        )
        async with self._engine.connect() as connection:
            last = (await connection.execute(head)).first()
            if last is None:
                return None
            if last.context_bytes > most_bytes:
                raise ContextTooLargeError(last.context_bytes)
            responses = (await connection.execute(rows)).all()
        if not responses or responses[0].previous_response_id is not None:
            return None
        items = [item for row in responses for item in (*row.input, *row.response["output"])]
        consent = reduce(Consent.narrowed, (consent_of(row.consent) for row in responses))
        return StoredContext(
            response_id=response_id,
            conversation=last.conversation,
            size=last.context_bytes,
            items=items,
            consent=consent,
        )

    async def items(
        self, tenant: str, item_ids: Sequence[str], response_of: Mapping[str, str], most_bytes: int
    ) -> StoredItems:
        """Return those items of `item_ids` that the tenant's responses output; `response_of` says in whose.

        Raises `ContextTooLargeError` if together, each as often as it is named, they hold more than `most_bytes`.
        """
        wanted, columns = Counter(item_ids), stored_responses.c
        response_ids = list(dict.fromkeys(response_of[item_id] for item_id in item_ids if item_id in response_of))
        items_by_id: dict[str, dict[str, Any]] = {}
        conversations: dict[str, str] = {}
        size, consent = 0, ALL
        async with self._engine.connect() as connection:
            for first in range(0, len(response_ids), _RESPONSES_AT_ONCE):
                some = columns.response_id.in_(response_ids[first : first + _RESPONSES_AT_ONCE])
                rows = select(columns.response_id, columns.conversation, columns.response, columns.consent)
                for row in await connection.execute(rows.where(some, columns.tenant == tenant)):
                    conversations[row.response_id] = row.conversation
                    consent = consent.narrowed(consent_of(row.consent))
                    for item in row.response["output"]:
                        if item["id"] in wanted:
                            items_by_id[item["id"]] = item
                            size += wanted[item["id"]] * len(msgspec.json.encode(item))
                if size > most_bytes:
                    raise ContextTooLargeError(size)
        last = conversations.get(response_ids[-1]) if response_ids else None
        return StoredItems(items=items_by_id, conversation=last, consent=consent)


def _mine(tenant: str, response_id: str) -> tuple[Any, Any]:
    return stored_responses.c.response_id == response_id, stored_responses.c.tenant == tenant


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
    consented to; None for both if it names none. Last the named items, by their indexes.

    Raises `ApiError`: 404 for an item that the tenant has not stored, 400 for more than a request may hold.
    """
    if isinstance(body.input, str) or not any(map(is_reference, body.input)):
        return body, None, None, {}
    named = {index: item.id or "" for index, item in enumerate(body.input) if is_reference(item)}
    stored = await _stored(serving, tenant, list(named.values()))
    for index, item_id in named.items():
        if item_id not in stored.items:
            raise ApiError(
                404,
                f"Item with id {item_id[:64]!r} not found: its response was not stored, or was deleted. Give the item "
                "itself; clients do so with store: false.",
                param=f"input[{index}].id",
                code="item_not_found",
            )
    items = [
        msgspec.convert(stored.items[named[index]], Item) if index in named else item
        for index, item in enumerate(body.input)
    ]
    named_items = {index: stored.items[item_id] for index, item_id in named.items()}
    return msgspec.structs.replace(body, input=items), stored.conversation, stored.consent, named_items


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
