"""Answers one line of a batch as its endpoint would, completely and at the lowest priority."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.errors import ApiError, bad_request, located
from gateway.base.inference_request import SLO_CLASSES, Caller, InferenceRequest
from gateway.batches.batch import Batch, InputLine
from gateway.batches.file_store import FileStore
from gateway.inference.answer import Answer
from gateway.inference.api.answers import AnswerFormat, CompletionsFormat
from gateway.inference.api.build_request import RequestHead, chat_request, completion_request
from gateway.inference.api.completions import CHAT, COMPLETION
from gateway.inference.api.embeddings import EMBEDDINGS, embedded
from gateway.inference.api.parsing import decoded_fields
from gateway.inference.api.responses.create import RESPONSES, ResponsesFormat
from gateway.inference.api.responses.exchange import exchange_of
from gateway.inference.api.sending import BeforeEnd, whole_body
from gateway.inference.service import Serving
from gateway.tenancy.keys.directory import KeysUnavailableError, UnknownKeyError
from gateway.tenancy.tenancy import Tenancy
from tiers.dialects.responses_items import without_codex_items
from tiers.errors import TierRequestError

_BATCH = SLO_CLASSES["batch"]


class LineAnswers:
    """Call it with a batch, one of its lines, and the request's id; returns the JSON of the answer.

    The line's caller is the batch's creator, with the current limits and budgets. Raises what the endpoint would.
    """

    def __init__(self, serving: Serving, tenancy: Tenancy, files: FileStore) -> None:
        self._serving, self._tenancy, self._files = serving, tenancy, files

    async def __call__(self, batch: Batch, line: InputLine, request_id: str) -> bytes:
        """See the class."""
        headers: dict[str, str] = {"x-aio-slo": _BATCH.name}
        if batch.traceparent is not None:
            headers["traceparent"] = batch.traceparent
        caller = await self._caller(batch.key_id)
        head = RequestHead(request_id=request_id, arrival=time.monotonic(), caller=caller, headers=headers)
        body = line.body.encode()
        if b'"file-' in body:
            from gateway.inference.api.prompt_files import with_files  # Most lines name none.

            body = await with_files(self._files, batch.tenant, body, self._serving.settings.body_limit)
        return await ENDPOINTS[batch.endpoint](self._serving, head, body, {"batch_id": batch.batch_id})

    async def _caller(self, key_id: str | None) -> Caller:
        directory = self._tenancy.directory
        try:
            with suppress(UnknownKeyError):
                return directory.caller_of(key_id)
            # Another process may have made the key since the last look.
            await directory.load()
            return directory.caller_of(key_id)
        except UnknownKeyError as error:
            raise ApiError(401, str(error)) from None
        except (KeysUnavailableError, SQLAlchemyError, OSError):
            raise ApiError(503, "Keys cannot be checked now.", code="keys_unavailable") from None


async def _chat_line(serving: Serving, head: RequestHead, body: bytes, tags: dict[str, str]) -> bytes:
    asked, _, extra, _ = await decoded_fields(serving, CHAT, body, head.caller)
    head = msgspec.structs.replace(head, extra=extra)
    return await _generated(serving, chat_request(serving, head, asked), CompletionsFormat(serving, None), tags)


async def _completion_line(serving: Serving, head: RequestHead, body: bytes, tags: dict[str, str]) -> bytes:
    asked, _, extra, _ = await decoded_fields(serving, COMPLETION, body, head.caller)
    head = msgspec.structs.replace(head, extra=extra)
    return await _generated(serving, completion_request(serving, head, asked), CompletionsFormat(serving, None), tags)


async def _responses_line(serving: Serving, head: RequestHead, body: bytes, tags: dict[str, str]) -> bytes:
    asked, _, extra, _ = await decoded_fields(serving, RESPONSES, body, head.caller)
    asked, _ = without_codex_items(asked, keeps_own=serving.routing.served.has_responses)
    exchange = await exchange_of(serving, msgspec.structs.replace(head, extra=extra), asked, body)
    answer_format = ResponsesFormat(serving, exchange)
    return await _generated(serving, exchange.request, answer_format, tags, answer_format.store)


async def _embeddings_line(serving: Serving, head: RequestHead, body: bytes, tags: dict[str, str]) -> bytes:
    asked, _, extra, _ = await decoded_fields(serving, EMBEDDINGS, body, head.caller)
    asked = msgspec.structs.replace(asked, metadata=(asked.metadata or {}) | tags)
    answer, _ = await embedded(serving, msgspec.structs.replace(head, extra=extra), asked, _BATCH.priority)
    return msgspec.json.encode(answer)


async def _generated(
    serving: Serving,
    inference_request: InferenceRequest,
    answer_format: AnswerFormat,
    tags: dict[str, str],
    before_end: BeforeEnd | None = None,
) -> bytes:
    if inference_request.stream:
        raise bad_request("Lines of a batch cannot stream: leave stream out.", "stream", "unsupported_parameter")
    priority = max(inference_request.generation.priority, _BATCH.priority)
    inference_request = msgspec.structs.replace(
        inference_request.with_generation(priority=priority),
        service_tier=None if inference_request.service_tier is None else "batch",
        metadata=(inference_request.metadata or {}) | tags,
    )
    try:
        answer: Answer = await serving.service.complete(inference_request)
    except (ApiError, TierRequestError) as error:
        raise located(error, inference_request.names) from None
    if before_end is not None:
        await before_end(answer)
    return await whole_body(answer_format, answer)


LineEndpoint = Callable[[Serving, RequestHead, bytes, dict[str, str]], Awaitable[bytes]]

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
ENDPOINTS: dict[str, LineEndpoint] = {
    "/v1/chat/completions": _chat_line,
    "/v1/completions": _completion_line,
    "/v1/embeddings": _embeddings_line,
    "/v1/responses": _responses_line,
}
