"""`POST /v1/chat/completions`; `POST /v1/completions`: raw text or token ids, without a chat template; and
`POST /tokenize` and `/detokenize`, as vLLM has them: a model's own tokens of a text or a conversation, and back."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import post
from litestar.response import Response
from litestar.types import ASGIApp
from msgspec import Meta

from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import InferenceRequest, Prompt
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.answers import CompletionsFormat
from gateway.inference.api.build_request import (
    RequestHead,
    chat_request,
    completion_request,
    received,
    responses_request,
    unanswered_request,
)
from gateway.inference.api.completions_schemas import ChatAnswer, CompletionAnswer
from gateway.inference.api.parsing import read_and_build, read_body
from gateway.inference.api.sending import respond
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import caller_of, inference_post
from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.conversation import Turn
from tiers.dialects.chat_request import turns_of
from tiers.dialects.chat_schemas import HARMLESS, ChatRequest, CompletionRequest, Message, TokenId
from tiers.dialects.client_forms import mend_chat, mend_completion, mend_responses
from tiers.dialects.decoding import MISSING, FieldReader
from tiers.dialects.responses_items import without_codex_items
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.local.decoder import calling_of
from tiers.tier import Tier

CHAT = FieldReader("/v1/chat/completions", ChatRequest, HARMLESS, "known", mend_chat)
_ITEMS = FieldReader("/v1/chat/completions", ResponsesRequest, forwards="known", mend=mend_responses)
B = TypeVar("B", ChatRequest, CompletionRequest, ResponsesRequest)
COMPLETION = FieldReader("/v1/completions", CompletionRequest, forwards="known", mend=mend_completion)


@inference_post(
    "/chat/completions",
    describe(ChatRequest, ChatAnswer, streamed=True),
    "Answer a conversation",
    id_prefix="chatcmpl",
)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer the last turn, whole or as server-sent events, with the tier that routing chose or the caller named."""
    try:
        return await _completed(request, CHAT, chat_request)
    except ApiError as error:
        if (error.body.param, error.body.code) != ("messages", MISSING) or b'"input"' not in await request.body():
            raise
    # Cursor sends a body of the Responses API here, and reads a chat.
    return await _completed(request, _ITEMS, _items_request)


def _items_request(serving: Serving, head: RequestHead, body: ResponsesRequest) -> InferenceRequest:
    return responses_request(serving, head, without_codex_items(body, keeps_own=False)[0])


@inference_post(
    "/completions",
    describe(CompletionRequest, CompletionAnswer, streamed=True),
    "Continue a text",
    id_prefix="cmpl",
)
async def completions(request: HttpRequest) -> ASGIApp:
    """Continue each prompt, whole or as server-sent events."""
    return await _completed(request, COMPLETION, completion_request)


async def _completed(
    request: HttpRequest, reader: FieldReader[B], build: Callable[[Serving, RequestHead, B], InferenceRequest]
) -> ASGIApp:
    serving = serving_of(request)
    body, built = await read_and_build(
        serving, request, reader, lambda body: _built(serving, received(request), body, build)
    )
    return await respond(request, serving, built, CompletionsFormat(serving, body.stream_options))


async def _built(
    serving: Serving, head: RequestHead, body: B, build: Callable[[Serving, RequestHead, B], InferenceRequest]
) -> InferenceRequest:
    work = partial(build, serving, head, body)
    is_long = isinstance(body, ChatRequest) and len(body.messages) > _BUILT_AT_ONCE
    return await serving.routing.threads.run(head.caller.tenant, work) if is_long else work()


# Messages of a chat whose request is built on the event loop, in some twenty milliseconds.
_BUILT_AT_ONCE = 8_000
# Of one request; lists of more take so long to write that others would wait.
MOST_TOKENS = 1_000_000


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A raw `prompt`, or `messages` in the model's chat format."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """Only for prompts, where it is true by default."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    """Whether the tokens' texts are wanted too."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each token, U+FFFD for what is only a part of a character."""


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids of a model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    tokens: list[TokenId]


class Detokenized(msgspec.Struct, frozen=True):
    """Their text, named as vLLM names it."""

    prompt: str


@post("/tokenize", status_code=200, operation_class=describe(TokenizeRequest, Tokens), summary="Tokenise a text")
async def tokenize(request: HttpRequest) -> Response[Any]:
    """The ids of a prompt or a conversation, as the model would read it; nothing is generated or billed. It counts
    against the limits of the key, with the tokens that it is."""
    body = await read_body(request, TokenizeRequest)
    tier, tokenizer = _tokenizer(request, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Give either prompt or messages.", "prompt", "invalid_value")
    messages = None if body.messages is None else turns_of(body.messages)
    prompts: list[Prompt] | None = None if body.prompt is None else [body.prompt]
    inference_request = unanswered_request(received(request), body.model, messages=messages, prompts=prompts)
    return await _answered(request, inference_request, partial(_tokens, tier, tokenizer, body, messages))


@post(
    "/detokenize",
    status_code=200,
    operation_class=describe(DetokenizeRequest, Detokenized),
    summary="Turn tokens into text",
)
async def detokenize(request: HttpRequest) -> Response[Any]:
    """The text of token ids, control tokens included. It counts against the limits of the key, with these tokens."""
    body = await read_body(request, DetokenizeRequest)
    _, tokenizer = _tokenizer(request, body.model)
    inference_request = unanswered_request(received(request), body.model, prompts=[body.tokens])
    return await _answered(request, inference_request, partial(_text, tokenizer, body.tokens))


async def _answered(
    request: HttpRequest, inference_request: InferenceRequest, work: Callable[[], tuple[bytes, int]]
) -> Response[Any]:
    """The body that `work` gives, on a thread, and how many tokens it is of: megabytes take longer than a request may
    hold the event loop."""
    serving = serving_of(request)
    async with serving.service.reading(inference_request) as admission:
        content, tokens = await serving.routing.threads.run(inference_request.caller.tenant, work)
        admission.settle(0.0, tokens)
    return Response(content, media_type="application/json", headers=admission.headers)


def _tokenizer(request: HttpRequest, model: str) -> tuple[Tier, Tokenizer]:
    named = serving_of(request).routing.served.unaliased(model, caller_of(request))
    served = serving_of(request).routing.served.seen_by(named)
    number = served.pinned_tier(named)
    if number is None:
        raise bad_request("Tiers may differ in their tokens: name a tier or a model, not auto.", "model")
    if not caller_of(request).may_use(served.spec(number)):
        raise ApiError(403, f"This key does not have access to model {model!r}.", param="model", code="model_not_found")
    tier = served.tier(number)
    if tier.tokenizer is None:
        raise ApiError(
            400 if tier.core_name is None else 503,
            f"The tokens of {model!r} are not known here: its tier runs elsewhere or has not started.",
            param="model",
            code="no_tokenizer",
        )
    return tier, tier.tokenizer


def _tokens(tier: Tier, tokenizer: Tokenizer, body: TokenizeRequest, messages: list[Turn] | None) -> tuple[bytes, int]:
    param = "prompt" if messages is None else "messages"
    try:
        if messages is None:
            pieces = tokenizer.text_pieces(body.prompt or "")
        else:
            turns, _ = calling_of(tokenizer).turns(messages, None)
            pieces = tokenizer.chat_pieces(turns, add_generation_prompt=body.add_generation_prompt)
        _require_few(tokenizer.least_tokens(pieces), param)
        marked = messages is None and body.add_special_tokens is not False
        encoded = tokenizer.encode_pieces(pieces, add_special_tokens=marked)
    except InvalidRequestError as error:
        raise bad_request(str(error), param, "invalid_value") from None
    _require_few(len(encoded), param)
    ids = encoded.ids()
    shown = Tokens(
        count=len(ids),
        max_model_len=tier.max_context,
        tokens=ids,
        token_strs=[tokenizer.token_bytes(i).decode(errors="replace") for i in ids] if body.return_token_strs else None,
    )
    return msgspec.json.encode(shown), len(ids)


def _require_few(tokens: int, param: str) -> None:
    if tokens > MOST_TOKENS:
        raise bad_request(f"{param} has more than {MOST_TOKENS} tokens: send it in parts.", param, "too_long")


def _text(tokenizer: Tokenizer, tokens: list[int]) -> tuple[bytes, int]:
    if len(tokens) > MOST_TOKENS:
        raise bad_request(f"tokens holds {len(tokens)}: send at most {MOST_TOKENS}.", "tokens", "too_long")
    size = tokenizer.vocab_size
    unknown = [token for token in tokens if token >= size]
    if unknown:
        raise bad_request(
            f"Token ids {unknown[:5]} are not below the vocabulary size {size}.",
            "tokens",
            "invalid_value",
        )
    # `Tokenizer.decode` leaves control tokens out, as answers have to.
    text = b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")
    return msgspec.json.encode(Detokenized(text)), len(tokens)
