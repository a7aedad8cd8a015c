"""From the bytes of a request to its decoded body: every refusal is a 400 that names the parameter, the value and what
is allowed."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import msgspec

from gateway.base.errors import ApiError, as_api_error, bad_request
from gateway.base.inference_request import CALLER, Caller
from gateway.edge.asgi import Connection, HttpRequest
from gateway.edge.client_paths import DEPLOYMENT
from gateway.inference.api.json_bounds import json_excess, structure_refusal
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import PlainRequest
from tiers.dialects.caller_urls import refuse_urls
from tiers.dialects.decoding import INVALID, MISSING, UNKNOWN, FieldReader, refusal_of, whole_text
from tiers.errors import BadRequestError

Body = TypeVar("Body", bound=msgspec.Struct)
Built = TypeVar("Built")
Decoded = TypeVar("Decoded")

NOT_JSON = "invalid_json"
IGNORED = "ignored_fields"
"""Where a request's state holds the names of its fields that were ignored, if there are any."""
EXTRA = "extra_fields"
"""Where it holds those that some servers know, by name."""
FILES = "files"
"""The key of the app's state for callers' files (`prompt_files.Files`)."""
MENDED = "mended_body"
"""There, and true, where its body was read in another form than it was sent in."""

# Larger bodies are decoded on a thread, which costs less than their decoding.
_DECODED_AT_ONCE = 1 << 17


async def read_body(request: HttpRequest, form: type[Body]) -> Body:
    """The JSON body, decoded as `form`. Raises `ApiError`: 415 for another media type, 400 for what does not decode."""
    body, caller = await json_of(request), request.scope["state"][CALLER]
    decoder: msgspec.json.Decoder[Body] = decoder_of(form)
    return await decoded_body(serving_of(request), decoder, body, caller)


@cache
def decoder_of(form: type[Any]) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a body, made once."""
    return msgspec.json.Decoder(form)


async def read_fields(
    serving: Serving, request: HttpRequest, fields: FieldReader[Body], *, again: bool = False
) -> Body:
    """Like `read_body`, but unless the caller's key or the server is strict, fields that have no meaning here are left
    out; a header of the answer names them. `again`: the body as it was sent has been refused."""
    raw = await json_of(request)
    state = request.scope["state"]
    body, ignored, extra, is_mended = await decoded_fields(serving, fields, raw, state[CALLER], again=again)
    if ignored:
        state[IGNORED] = ignored
    if extra:
        state[EXTRA] = extra
    if is_mended:
        state[MENDED] = True
    return body


def note_ignored(request: HttpRequest, names: Sequence[str]) -> None:
    """Let a header of the answer name what is ignored of the request."""
    if names:
        state = request.scope["state"]
        state[IGNORED] = [*state.get(IGNORED, ()), *names]


async def read_and_build(
    serving: Serving, request: HttpRequest, fields: FieldReader[Body], build: Callable[[Body], Awaitable[Built]]
) -> tuple[Body, Built]:
    """The body of a request, and what `build` makes of it; where that refuses it with a 400, of the body as it is
    plainly meant, unless the caller's requests are read to the letter. Raises `ApiError`."""
    body = await read_fields(serving, request, fields)
    try:
        return body, await build(body)
    except ApiError as error:
        if error.status != 400 or is_strict(serving, request.scope["state"][CALLER]):
            raise
        request.scope["state"].pop(IGNORED, None)
        mended = await read_fields(serving, request, fields, again=True)
        if mended == body:
            raise
        return mended, await build(mended)


def is_strict(serving: Serving, caller: Caller) -> bool:
    """Whether the caller's requests are read to the letter."""
    return caller.strict or serving.settings.strict_fields


def decoded_body(serving: Serving, decoder: msgspec.json.Decoder[Body], body: bytes, caller: Caller) -> Awaitable[Body]:
    """What `decode_body` returns, of a large body without holding up the event loop."""
    return off_loop(serving, caller, body, partial(decode_body, decoder, body))


def decoded_fields(
    serving: Serving, fields: FieldReader[Body], body: bytes, caller: Caller, *, again: bool = False
) -> Awaitable[tuple[Body, list[str], dict[str, Any], bool]]:
    """The request in `body`, the names of its fields that are ignored, those that some servers know, and whether it had
    another form. `again`: see `read_fields`. Raises `ApiError` as `read_body` does."""
    return off_loop(serving, caller, body, partial(_decode_fields, serving, fields, body, caller, again=again))


async def off_loop(serving: Serving, caller: Caller, body: bytes, work: Callable[[], Decoded]) -> Decoded:
    """Return what `work` makes of `body`, or of what it was decoded as: of a large one on a thread, since it takes tens
    of milliseconds."""
    try:
        if len(body) <= _DECODED_AT_ONCE:
            return work()
        return await serving.routing.threads.run(caller.tenant, work)
    except BadRequestError as error:
        raise as_api_error(error) from None


def _decode_fields(
    serving: Serving, fields: FieldReader[Body], body: bytes, caller: Caller, *, again: bool = False
) -> tuple[Body, list[str], dict[str, Any], bool]:
    strict = is_strict(serving, caller)
    ignored: list[str] = []
    extra: dict[str, Any] = {}
    known_part = partial(fields.known_part, forward=serving.routing.served.forwarded_fields)
    try:
        if again:
            parsed, ignored, extra = _decoded(known_part, body, fields.body)
        else:
            parsed = _decoded(fields.decode, body, fields.body)
    except ApiError as error:
        if not strict and error.body.code == NOT_JSON and (whole := whole_text(body)) != body:
            return _decode_fields(serving, fields, whole, caller, again=again)
        if strict or again or error.body.code not in (UNKNOWN, INVALID, MISSING):
            raise
        parsed, ignored, extra = _decoded(known_part, body, fields.body)
        again = error.body.code != UNKNOWN
    refuse_urls(extra, "")
    harmless = [name for name in fields.harmless if getattr(parsed, name) is not None]
    if harmless and strict:
        refuse_given(parsed, fields.harmless)
    if harmless or ignored:
        serving.count_ignored(fields.endpoint)
        ignored += harmless
    return parsed, ignored, extra, again


async def json_of(request: HttpRequest) -> bytes:
    """Return the body of a request in JSON, with the model that its path names and the files that it
    names. Raises `ApiError` 415, 413."""
    check_media_type(request)
    body = await request.body()
    if b'"file-' in body:
        from gateway.inference.api.prompt_files import with_files  # Most bodies name none.

        tenant, most = request.scope["state"][CALLER].tenant, serving_of(request).settings.body_limit
        body = await with_files(request.app.state[FILES], tenant, body, most)
        if isinstance(request, PlainRequest):
            request.become(body)
    deployment: Any = (request.scope.get("extensions") or {}).get(DEPLOYMENT)
    return body if deployment is None else _with_model(body, deployment)


def check_media_type(connection: Connection) -> None:
    """Raise `ApiError` 415 for a body that is said to be no JSON."""
    # Forms and plain text, whatever their parameters say, are what web pages may send to other sites unasked.
    stated = connection.scope["state"]["headers"].get("content-type", "")
    if stated != "application/json":
        media_type = stated.partition(";")[0].strip().lower()
        if media_type and media_type != "application/json" and not media_type.endswith("+json"):
            raise ApiError(415, f"Send the body as application/json, not as {media_type[:64]!r}.")


def _with_model(body: bytes, model: str) -> bytes:
    """The body with the model that a client of Azure names in its path; as it is where it is no object of JSON."""
    if json_excess(body) is not None:
        return body
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    return msgspec.json.encode(fields | {"model": msgspec.Raw(msgspec.json.encode(model))})


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Decode JSON strictly. Raises `ApiError` 400 for bad UTF-8, bad JSON, wrong types, ranges and unknown fields."""
    return _decoded(decoder.decode, body, decoder.type)


def _decoded(decode: Callable[[bytes], Decoded], body: bytes, kind: Any) -> Decoded:
    if (excess := json_excess(body)) is not None:
        raise structure_refusal(body, excess)
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise as_api_error(refusal_of(error, kind)) from None
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not valid UTF-8: {error.reason} in a string.", None, "invalid_utf8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"The body is not valid JSON: {error}.", None, NOT_JSON) from None


def refuse_given(body: msgspec.Struct, names: tuple[str, ...]) -> None:
    """Refuse by name every field that has a value and no machinery."""
    for name in names:
        if getattr(body, name) is not None:
            raise bad_request(f"Unsupported parameter {name}: leave it out.", name, "unsupported_parameter")
