"""`POST /tokenize` and `/detokenize`, as vLLM has them: a model's own tokens of a text or a conversation, and back."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.response import Response
from msgspec import Meta

from gateway.api.generating import read_body
from gateway.api.guard import caller_of
from gateway.api.operations import describe
from gateway.api.parsing import turns_of
from gateway.api.schemas import Message, TokenId
from gateway.errors import ApiError, bad_request
from gateway.parts import HttpRequest, parts_of
from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.tier import Tier
from tiers.tools.calling import ToolCalling


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A raw `prompt`, or `messages` in the model's chat format. `add_special_tokens` is about prompts, and true there
    by default; `return_token_strs` asks for the tokens' texts too."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """`token_strs`: the text of each token, U+FFFD for what is only a part of a character."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids of a model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    tokens: list[TokenId]


class Detokenized(msgspec.Struct, frozen=True):
    """Their text, named as vLLM names it."""

    prompt: str


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


@post("/tokenize", status_code=200, operation_class=describe(TokenizeRequest, Tokens), summary="Tokenise a text")
async def tokenize(request: HttpRequest) -> Response[Any]:
    """The ids of a prompt or a conversation, as the model would read it; nothing is generated or billed."""
    body = await read_body(request, _tokenize)
    tier, tokenizer = _tokenizer(request, body.model)
    # Megabytes of text take longer than a request may hold the event loop.
    tokens = await asyncio.to_thread(_ids, tokenizer, body)
    strings = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    return Response(
        Tokens(
            count=len(tokens),
            max_model_len=tier.max_context,
            tokens=tokens,
            token_strs=strings if body.return_token_strs else None,
        ),
        media_type="application/json",
    )


@post(
    "/detokenize",
    status_code=200,
    operation_class=describe(DetokenizeRequest, Detokenized),
    summary="Turn tokens into text",
)
async def detokenize(request: HttpRequest) -> Response[Any]:
    """The text of token ids, control tokens included."""
    body = await read_body(request, _detokenize)
    _, tokenizer = _tokenizer(request, body.model)
    unknown = [token for token in body.tokens if token >= tokenizer.vocab_size]
    if unknown:
        raise bad_request(
            f"Token ids {unknown[:5]} are not below the vocabulary size {tokenizer.vocab_size}.",
            "tokens",
            "invalid_value",
        )
    # `Tokenizer.decode` leaves control tokens out, as answers have to.
    text = b"".join(map(tokenizer.token_bytes, body.tokens)).decode(errors="replace")
    return Response(Detokenized(text), media_type="application/json")


def _tokenizer(request: HttpRequest, model: str) -> tuple[Tier, Tokenizer]:
    routing = parts_of(request).routing
    number = routing.pinned_tier(model)
    if number is None:
        raise bad_request("Tiers may differ in their tokens: name a tier or a model, not auto.", "model")
    if not caller_of(request).may_use(number):
        raise ApiError(403, f"This key does not have access to model {model!r}.", param="model", code="model_not_found")
    tier = routing.tier(number)
    if tier.tokenizer is None:
        raise ApiError(
            400 if tier.core_name is None else 503,
            f"The tokens of {model!r} are not known here: its tier runs elsewhere or has not started.",
            param="model",
            code="no_tokenizer",
        )
    return tier, tier.tokenizer


def _ids(tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Give either prompt or messages.", "prompt", "invalid_value")
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    turns, _ = ToolCalling(tokenizer, None).turns(turns_of(body.messages or []), None)
    try:
        return tokenizer.encode_chat(turns, add_generation_prompt=body.add_generation_prompt)
    except InvalidRequestError as error:
        raise bad_request(str(error), "messages", "invalid_value") from None
