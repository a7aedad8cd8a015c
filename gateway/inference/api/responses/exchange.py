"""One request to `/v1/responses` with the conversation that it goes on from, and the storing of its response."""

import asyncio
import logging
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import InferenceRequest
from gateway.base.stores.database import reached
from gateway.inference.api.build_request import RequestHead, request_of
from gateway.inference.api.list_queries import is_id
from gateway.inference.api.parsing import off_loop
from gateway.inference.api.responses.stored_responses import (
    ContextTooLargeError,
    StoredContext,
    StoredResponse,
    StoredResponses,
    resolved,
)
from gateway.inference.service import Serving, truncated
from quality.store.drivers import STALL_SECONDS
from tiers.dialects.decoding import whole_text
from tiers.dialects.responses_items import GivenItems, as_sent, given_items, input_items, opened_data
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import Item, ResponsesRequest

log = logging.getLogger(__name__)

# How long an answer's end may wait for the database; then it is given without being stored.
STORE_SECONDS = STALL_SECONDS + 3.0


class Exchange:
    """A request and what it goes on from. `stored`: whether its response is, or will be, found by its id.

    The response is stored before the last bytes of its answer are sent, so that whatever a client asks next finds it,
    on every gateway process; what waits is one commit, at the end of an answer that took much longer.
    """

    def __init__(
        self,
        serving: Serving,
        body: ResponsesRequest,
        request: InferenceRequest,
        context: StoredContext | None,
        raw_items: GivenItems | None = None,
    ) -> None:
        """`raw_items`: the items of the request as they were."""
        self.body, self.request, self.raw_items = body, request, raw_items
        self._context = context
        self._store = StoredResponses(serving.database)
        # A redaction would change what models and tools had said.
        self.stored = request.consent.reuse and not serving.settings.redaction

    def answered_as(self, request: InferenceRequest) -> None:
        """Go on with the request as it was answered, which may consent to less than it was asked with."""
        self.request, self.stored = request, self.stored and request.consent.reuse

    async def store(self, response: dict[str, Any]) -> None:
        """Store the finished response, if it is to be. On failure `stored` becomes False."""
        if not self.stored:
            return
        try:
            async with asyncio.timeout(STORE_SECONDS):
                self.stored = await self._store.add(self._row(response))
        except (SQLAlchemyError, OSError, TimeoutError, OverflowError) as error:
            self.stored = False
            log.warning("response %s is not stored: %s", self.request.request_id, type(error).__name__)

    def _row(self, response: dict[str, Any]) -> StoredResponse:
        request, context = self.request, self._context
        raw_items = None if self.raw_items is None else self.raw_items.items
        items = input_items(self.body.input, request.request_id, raw_items)
        input_json = msgspec.json.encode(items)
        own = len(input_json) + len(msgspec.json.encode(response["output"]))
        return StoredResponse(
            response_id=request.request_id,
            key_id=request.key_id,
            tenant=request.caller.tenant,
            previous_response_id=None if context is None else context.response_id,
            conversation=request.options.conversation or request.request_id,
            context_bytes=own + (0 if context is None else context.size),
            input=msgspec.Raw(input_json),
            response=response,
            consent=request.consent,
            created_at=request.created_at,
        )


async def exchange_of(
    serving: Serving, head: RequestHead, body: ResponsesRequest, raw: bytes, *, is_compaction: bool = False
) -> Exchange:
    """The exchange of a request, whose JSON is `raw`; a compaction is asked for in our own words.

    Raises `ApiError`: 400 that names the parameter, 404 for a previous response that the caller's tenant has not
    stored, or an item of one, 503 while the database is down.
    """
    context = None
    if body.previous_response_id is not None:
        context = await _context(serving, head.caller.tenant, body.previous_response_id)
    body, conversation, named_consent, named = await resolved(serving, head.caller.tenant, body)
    before = [] if context is None else [opened_data(item) for item in context.items]
    earlier = msgspec.convert(before, list[Item])
    keeps_items = serving.routing.served.has_responses and not is_compaction

    def built() -> tuple[GivenItems | None, InferenceRequest]:
        said = as_sent(_given(raw), body.tools) if keeps_items else None
        if said is not None and not isinstance(body.input, str) and len(said.items) != len(body.input):
            said = None
        if said is not None:
            for index, item in named.items():
                said.items[index] = item
        return said, request_of(serving, head, read_responses(body, earlier, said, before))

    said, request = await off_loop(serving, head.caller, raw, built)
    if context is not None:
        conversation = context.conversation
    for earlier_consent in (named_consent, None if context is None else context.consent):
        if earlier_consent is not None:
            request = msgspec.structs.replace(request, own_consent=request.own_consent.narrowed(earlier_consent))
    if request.options.conversation is None and (conversation is not None or request.consent.reuse):
        # Routing recognises the conversation by its first response, whatever instructions come with a turn.
        options = msgspec.structs.replace(request.options, conversation=conversation or request.request_id)
        request = msgspec.structs.replace(request, options=options)
    if body.truncation == "auto":
        request = await truncated(serving.routing, request)
    return Exchange(serving, body, request, context, said)


def _given(raw: bytes) -> GivenItems:
    """The items of a request that was read, whole or not."""
    try:
        return given_items(raw)
    except msgspec.DecodeError:
        return given_items(whole_text(raw))


async def _context(serving: Serving, tenant: str, response_id: str) -> StoredContext:
    most = serving.settings.body_limit
    try:
        store = StoredResponses(serving.database)
        context = await reached(store.context(tenant, response_id, most)) if is_id(response_id) else None
    except ContextTooLargeError as error:
        raise bad_request(
            f"The conversation of {response_id[:64]!r} holds {error.size} bytes; only from {most} (AIO_BODY_LIMIT) or "
            "less can a request go on. Begin a new conversation with a summary of it.",
            "previous_response_id",
            "context_too_large",
        ) from None
    if context is None:
        raise ApiError(
            404,
            f"Previous response with id {response_id[:64]!r} not found: it was not stored, or it or one before it was "
            "deleted. Send the whole conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return context
